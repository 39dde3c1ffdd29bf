"""Which fields of which topics the columns of tables hold, gathered while tables are planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource, FilesSource
from distributary.model.table import Column, Fill, Origin, Role
from distributary.run.change_tables import log_of
from distributary.stage.metadata import DATE, METADATA

Fields = Mapping[str, tuple[Origin, ...]]
"""By column: the fields whose values it holds."""

_PARTS = {
    "key": "key",
    "headers": "headers",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "raw": "value",
}
"""What a metadata column holds of the record itself."""
_BRONZE = {"payload": "value", "value": "value", "key": "key", "headers": "headers"}
_LETTERS = {name: name for name in _PARTS.values()}


class Origins:
    """Grows with every schema that is met; a snapshot stays the same until it does."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._parts = record_parts(config)
        self._known: dict[str, dict[str, dict[Origin, None]]] = {}
        self._snapshots: dict[str, dict[Role, Fields]] = {}

    def note(self, table: str, fills: Iterable[Fill], columns: Iterable[Column]) -> None:
        """Take in how a writer's columns get into a table."""
        found = {column.name: column.origin for column in columns}
        known = self._known.setdefault(table, {})
        for fill in fills:
            origin = found.get(fill.source)
            if origin is not None and origin not in known.get(fill.target, ()):
                known.setdefault(fill.target, {})[origin] = None
                self._snapshots.pop(table, None)

    def of(self, table: str, role: Role) -> Fields:
        """The fields of a table's columns, the same object until they change.

        What is made of a log has its columns by their names.
        """
        base = log_of(table) if role in (Role.MERGED, Role.HISTORY) else table
        snapshots = self._snapshots.setdefault(base, {})
        if role not in snapshots:
            own = {name: tuple(found) for name, found in self._known.get(base, {}).items()}
            snapshots[role] = {**self._record(role), **own}
        return snapshots[role]

    def _record(self, role: Role) -> dict[str, tuple[Origin, ...]]:
        """Columns that hold a part of the record itself."""
        wanted = {
            column.name: _PARTS[name]
            for name, column in METADATA.items()
            if name in self._config.tables.metadata and name in _PARTS
        }
        wanted[DATE.name] = "timestamp"
        if role is Role.BRONZE:
            coordinates = {f"_{name}": name for name in ("topic", "partition", "offset")}
            wanted |= {**_BRONZE, **coordinates, "_timestamp": "timestamp"}
        elif role is Role.DEAD_LETTERS:
            wanted = dict(_LETTERS)
        return {
            column: (Origin(self._parts[part]),)
            for column, part in wanted.items()
            if part in self._parts
        }


def record_parts(config: PipelineConfig) -> Mapping[str, str]:
    """What the parts of a record are called where it is read."""
    source = config.source
    if isinstance(source, FilesSource):
        return {}
    if not isinstance(source, DeltaSource):
        return {name: name for name in _PARTS.values()}
    named = {name: getattr(source, name) for name in ("key", "headers", "timestamp", "value")}
    return {name: column for name, column in named.items() if column is not None}


def qualified(columns: Iterable[Column], *, topic: str = "", inside: str = "") -> list[Column]:
    """A writer's columns with the place of their fields: a topic, or a type or table in it."""
    return [
        column
        if column.origin is None
        else replace(column, origin=Origin(_inside(column.origin.field, inside), topic))
        for column in columns
    ]


def _inside(field: str, place: str) -> str:
    return field if not place or field.startswith(f"{place}.") else f"{place}.{field}"
