"""A process that ends with its supervisor, however that ends: no orphan is left.

The supervisor holds the other end of a pipe and never writes to it. When the pipe ends, the
supervisor is gone, also when it was killed: the process asks itself to stop as a person would, and
is killed with all that it started if that takes too long.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

VARIABLE = "DISTRIBUTARY_TETHER"


def tether_variable(fd: int, *, grace: float) -> dict[str, str]:
    """What the supervisor puts into the environment of a process."""
    return {VARIABLE: f"{fd}:{grace}"}


def hold_tether(environ: Mapping[str, str] = os.environ) -> None:
    """Watch the pipe that the environment names, if it names one."""
    fd, _, grace = environ.get(VARIABLE, "").partition(":")
    if not fd:
        return
    if environ is os.environ:
        # not for the processes that this one starts
        del os.environ[VARIABLE]
    os.set_inheritable(int(fd), False)
    watch = threading.Thread(
        target=_watch, args=(int(fd), float(grace)), name="tether", daemon=True
    )
    watch.start()


def _watch(fd: int, grace: float) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    # the leader of a session of its own takes its group with it: Spark's JVM is in it
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
