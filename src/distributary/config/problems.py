"""What is wrong with a pipeline file: every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from distributary.config.origin import Origin
from distributary.errors import ConfigError, ErrorCode

_LONGEST_NAME = 120
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or warning; never holds a value from the file."""

    file: str
    line: int
    """From 1; 0 when the mistake is in no line: a flag, a variable, the file as a whole."""
    column: int
    path: str
    """The setting, `source.topics[0]`; empty for the file as a whole."""
    code: ErrorCode
    message: str
    suggestion: str = ""
    """What was probably meant: a key, a literal or a variable's name."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        meant = f", did you mean {self.suggestion}?" if self.suggestion else ""
        parts = (place, self.code, self.path, f"{self.message}{meant}")
        return "  ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return asdict(self) | {"code": str(self.code)}


class PipelineFileError(ConfigError):
    """A pipeline file with all its problems."""

    def __init__(self, what: str, *, problems: Iterable[Problem] = (), **parts: Any) -> None:
        super().__init__(what, **parts)
        self.problems: tuple[Problem, ...] = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems)) or super().__str__()

    def as_dict(self) -> dict[str, Any]:
        """The parts of any error, and the problems."""
        return super().as_dict() | {"problems": [p.as_dict() for p in self.problems]}


def refuse(file: str, problems: Iterable[Problem]) -> PipelineFileError:
    """The error for these problems, in the order of the file, each once."""
    ordered = sorted(dict.fromkeys(problems), key=lambda p: (p.file != file, p.line, p.column))
    codes = {problem.code for problem in ordered}
    count = len(ordered)
    # a file that cannot be read at all has no lines to mend
    mend = "mend the lines above" if any(p.line or p.path for p in ordered) else "check the path"
    return PipelineFileError(
        f"{file} has {count} problem{'s' if count != 1 else ''}",
        problems=ordered,
        code=codes.pop() if len(codes) == 1 else ErrorCode.CONFIG_INVALID,
        where=str(ordered[0]).split("  ")[0],
        evidence="; ".join(f"{p.path}: {p.message}" for p in ordered[:3]),
        next_step=f"{mend}, then run `distributary validate` again",
    )


def problem_at(
    origin: Origin, *, path: str, code: ErrorCode, message: str, suggestion: str = ""
) -> Problem:
    """A problem at the place that a value came from."""
    file = origin.name if origin.line else str(origin)
    return Problem(
        file=printable(file),
        line=origin.line,
        column=origin.column,
        path=printable(path),
        code=code,
        message=printable(message, longest=_LONGEST_MESSAGE),
        suggestion=printable(suggestion),
    )


def printable(text: str, *, longest: int = _LONGEST_NAME) -> str:
    """Text from outside, cut and without anything that a terminal would obey."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in cut)
