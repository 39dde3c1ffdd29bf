"""The text of a MERGE: names from outside only ever appear quoted, values as parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from distributary.merge.sequence import Place
from distributary.model.change import SEQ

SYSTEM = ("_seq", "_source_ts", "_deleted")
_TYPES = {"int32": "INT", "int64": "BIGINT", "string": "STRING"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A MERGE and its parameters."""

    text: str
    values: dict[str, int | str]


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def merge_statement(
    path: str,
    view: str,
    *,
    columns: Sequence[str],
    key: Collection[str],
    left_out: Collection[str],
    soft: bool,
    emptied: Place | None,
    empties: bool,
) -> Statement:
    """Apply the winners in a view to a table.

    The view has the table's columns as `c0`, `c1` and so on, and `_seq`, `_source_ts`, `gone`; for
    columns that events leave out `l<n>` with the last `value` that was told and its `_seq`.
    `emptied` is the last truncate, and `empties` whether it is news for the table.
    """
    newer = "coalesce(s._seq > t._seq, true)"
    old = "false" if emptied is None else f"t._seq < {_place()}"
    payload = [(n, name) for n, name in enumerate(columns) if name not in SYSTEM]
    gone = "s.gone" if emptied is None or not soft else f"(s.gone OR s._seq < {_place()})"
    system = {"_seq": "s._seq", "_source_ts": "s._source_ts", "_deleted": gone if soft else "false"}
    own = {name: system[name] for name in SYSTEM if name in columns}
    sets = {name: _updated(n, name, name in left_out) for n, name in payload} | own
    values = {name: f"s.l{n}.value" if name in left_out else f"s.c{n}" for n, name in payload} | own
    met = [f"t.{quoted(name)} <=> s.c{n}" for n, name in payload if name in key]
    lines = [
        f"MERGE INTO delta.{quoted(path)} t USING {view} s ON {' AND '.join(met)}",
        *(() if soft else (f"WHEN MATCHED AND {newer} AND s.gone THEN DELETE",)),
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {_assignments(sets)}",
    ]
    if empties and soft:
        live = f"{old} AND NOT coalesce(t._deleted, false)"
        lines.append(f"WHEN MATCHED AND {live} THEN UPDATE SET _deleted = true")
    inserts = f"({', '.join(map(quoted, values))}) VALUES ({', '.join(values.values())})"
    lines.append(f"WHEN NOT MATCHED {'' if soft else 'AND NOT s.gone '}THEN INSERT {inserts}")
    if empties and soft:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {live} THEN UPDATE SET _deleted = true")
    elif empties:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {old} THEN DELETE")
    names = [field.name for field in SEQ]
    marks = {} if emptied is None else dict(zip(names, emptied, strict=True))
    return Statement("\n".join(lines), {f"emptied_{name}": value for name, value in marks.items()})


def _updated(number: int, name: str, left_out: bool) -> str:
    if not left_out:
        return f"s.c{number}"
    told = f"s.l{number}._seq"
    return f"CASE WHEN coalesce({told} > t._seq, {told} IS NOT NULL) " + (
        f"THEN s.l{number}.value ELSE t.{quoted(name)} END"
    )


def _assignments(sets: dict[str, str]) -> str:
    return ", ".join(f"{quoted(name)} = {value}" for name, value in sets.items())


def _place() -> str:
    parts = [f"'{f.name}', CAST(:emptied_{f.name} AS {_TYPES[str(f.type)]})" for f in SEQ]
    return f"named_struct({', '.join(parts)})"
