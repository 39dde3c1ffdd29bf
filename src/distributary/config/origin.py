"""Where a value came from, and where a mistake is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OriginKind(StrEnum):
    """Strongest first."""

    FLAG = "flag"
    VARIABLE = "variable"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of one value; `str()` gives `pipeline.yaml:14`, `variable NAME`, `flag KEY`."""

    kind: OriginKind
    name: str = ""
    """The file, variable or flag."""
    line: int = 0
    """From 1; 0 outside a file."""
    column: int = 0
    references: tuple[str, ...] = ()
    """The `${...}` that the value was made of, such as `env:KAFKA_SERVER`."""
    secret: bool = False
    """Whether the value must never be shown, whatever setting it is in."""

    def __str__(self) -> str:
        if self.kind is OriginKind.DEFAULT:
            return "default"
        place = f"{self.name}:{self.line}" if self.line else f"{self.kind} {self.name}"
        return f"{place} ({', '.join(self.references)})" if self.references else place

    def as_dict(self) -> dict[str, object]:
        """The same for `--json`."""
        return {
            "kind": str(self.kind),
            "name": self.name,
            "line": self.line or None,
            "column": self.column or None,
            "references": list(self.references),
        }


DEFAULT = Origin(OriginKind.DEFAULT)
