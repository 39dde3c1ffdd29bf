"""The reference of the ledger and of the dead letters, read from their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from distributary.model.deadletter import DEAD_LETTER_COLUMNS
from distributary.observe.ledger.recording import BATCHES, SCHEMAS, TABLES
from tools.docs.commands import cell

_INTRODUCTION = """\
# The ledger

Three Delta tables under `_distributary/ledger` in the lake. `status`, `tables`, `schema history`,
`trace` and the dashboard read these and nothing else; any reader of Delta tables may ([why it is
there](../concepts/ledger.md)).
"""

_ABOUT = {
    "batches": "One row for each settled batch: the equation, the time of each step, what was "
    "read. Old batches are summed up into rows that stand for several.",
    "tables": "One row for each table and batch that touched it.",
    "schemas": "One row for each change of a table that a schema has brought.",
}
_LETTERS = """
## dead_letters

The table that `tables.dead_letters` names lies beside the others in the lake. One row for each
record that could not be ingested, whole, and what has become of it ([dead
letters](../concepts/dead-letters.md)).
"""

LEDGER: dict[str, pa.Schema] = {"batches": BATCHES, "tables": TABLES, "schemas": SCHEMAS}


def page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for name, schema in LEDGER.items():
        yield f"## {name}\n"
        yield f"`_distributary/ledger/{name}`: {_ABOUT[name]}\n"
        yield from _table((f.name, f.type, f.metadata[b"comment"].decode()) for f in schema)
        yield ""
    yield _LETTERS
    yield from _table((c.name, c.type, c.comment) for c in DEAD_LETTER_COLUMNS)


def _table(columns: Iterable[tuple[str, pa.DataType, str]]) -> Iterator[str]:
    yield "| column | type | |"
    yield "|---|---|---|"
    for name, kind, comment in columns:
        yield f"| `{name}` | {cell(type_name(kind))} | {cell(comment)} |"


def type_name(kind: pa.DataType) -> str:
    """A type as SQL calls it."""
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name} {type_name(f.type)}' for f in kind)}>"
    names = {"int64": "bigint", "int32": "int", "bool": "boolean", "binary": "binary"}
    return "timestamp" if pa.types.is_timestamp(kind) else names.get(str(kind), str(kind))
