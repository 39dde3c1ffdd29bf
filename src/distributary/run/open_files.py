"""How many files a process may have open: Spark opens hundreds before it reads a record."""

from __future__ import annotations

import resource
from contextlib import suppress

from distributary.errors import ErrorCode, SetupError

_ENOUGH = 65_536
_FEW = 1_024
"""With fewer, the JVM may not find its own classes."""
_LONGEST = 300


def raise_limit() -> None:
    """Take as many as this process may have, before the JVM inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # some systems have a lower limit than they say
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def too_few_files(text: str) -> SetupError | None:
    """What a failure means whose words say, plainly or not, that no more files could be opened."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    signs = ["Too many open files"]
    if limit != resource.RLIM_INFINITY and limit < _FEW:
        # an archive that cannot be opened is to the JVM one that does not have the class
        signs += ["NoClassDefFoundError", "ClassNotFoundException", "ExceptionInInitializerError"]
    lines = [line.strip() for line in text.splitlines() if any(sign in line for sign in signs)]
    if not lines:
        return None
    return SetupError(
        "too few files may be open at once",
        code=ErrorCode.SPARK_FAILED,
        where=f"limit of this process: {limit:,}",
        evidence=lines[0][:_LONGEST],
        next_step=f"allow {_ENOUGH:,}: `ulimit -n {_ENOUGH}` in the shell that starts it, "
        f"LimitNOFILE={_ENOUGH} in a systemd unit, --ulimit nofile={_ENOUGH} for a container",
        limit=limit,
    )
