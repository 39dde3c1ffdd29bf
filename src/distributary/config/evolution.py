"""What to do when a writer's schema changes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from distributary.config.base import Section


class Evolution(Section):
    """What happens to a table when the schema of its records changes."""

    new_field: Literal["add", "ignore", "dead_letter", "fail"] = "add"
    """A field that the table has no column for."""
    wider_type: Literal["widen", "side_column", "dead_letter", "fail"] = "widen"
    """int to bigint, float to double, more decimal digits."""
    type_change: Literal["side_column", "dead_letter", "fail"] = "side_column"
    """Any other change of type: the values go to a column of their own, `name__type`."""
    renamed: Literal["new_column", "keep_name"] = "new_column"
    """The same protobuf field number (or an Avro alias) under another name."""
    new_type: Literal["create", "dead_letter", "fail"] = "create"
    """A type of record that has no table yet."""
    max_new_tables_per_batch: int = Field(default=2000, ge=0)
    """More new types than this in one batch: the rest are dead-lettered as TOO_MANY_TYPES."""
