"""What every section of a pipeline file has in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

Conflict = tuple[tuple[str | int, ...], str]
"""The setting to blame, as a path below the section, and why it cannot stay."""

CONFLICT = "conflict"
"""The pydantic error type of a conflict."""


class Section(BaseModel):
    """Frozen, unknown keys refused, the docstring under a setting is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Settings that are fine alone and cannot work together."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        found = [
            InitErrorDetails(
                type=PydanticCustomError(CONFLICT, "{why}", {"why": why}), loc=path, input=None
            )
            for path, why in self.conflicts()
        ]
        if found:
            raise ValidationError.from_exception_data(type(self).__name__, found)
        return self
