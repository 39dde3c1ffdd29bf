"""What the end of an update means, by what was printed and by what the registry knows now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode, SchemaGrewError
from distributary.pipelines.assumed import grown

_OURS = re.compile(r"distributary\.errors\.(\w+): ([A-Z_]+): (.*)")
_MOST = 500


def failure(
    lines: Sequence[str], book: Path, *, project: str, log: Path | None = None
) -> DistributaryError:
    """Why an update failed.

    Args:
        lines: the last lines that Spark's program has printed.
        book: what the update took for granted.
        project: the name of the project.
        log: where Spark's log is, if it is here.
    """
    ours = _raised(lines)
    if ours is not None:
        return ours
    news = grown(book)
    if news:
        return SchemaGrewError(
            "the schema has grown while the update ran",
            where=project,
            evidence="; ".join(news)[:_MOST],
            next_step="nothing is lost: the next update reads the same records again",
        )
    return DistributaryError(
        "the update failed",
        code=ErrorCode.SPARK_FAILED,
        where=project,
        evidence=_last_words(lines)[:_MOST],
        next_step=f"read {log}" if log else "read the log of the Spark Connect server",
    )


def _raised(lines: Sequence[str]) -> DistributaryError | None:
    """An error of ours that the definitions themselves ended with."""
    for number in range(len(lines) - 1, -1, -1):
        match = _OURS.match(lines[number])
        if match is None or match[2] not in ErrorCode.__members__:
            continue
        kind = getattr(errors, match[1], DistributaryError)
        parts = dict(re.findall(r"^  (at|seen|next): (.*)$", "\n".join(lines[number:]), re.M))
        error = kind(match[3], code=ErrorCode(match[2]))
        error.where, error.evidence = parts.get("at", ""), parts.get("seen", "")
        error.next_step = parts.get("next", "")
        return error if isinstance(error, DistributaryError) else None
    return None


def _last_words(lines: Sequence[str]) -> str:
    """The first line of the last exception, or else the last line."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("Traceback "):
            said = [line for line in lines[number + 1 :] if line and not line.startswith(" ")]
            if said:
                return said[0]
    return next((line for line in reversed(lines) if line.strip()), "")
