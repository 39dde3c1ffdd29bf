"""The text of a MERGE: names from outside only ever appear quoted, and texts as their bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distributary.merge.sequence import Place
from distributary.model.change import SEQ

SYSTEM = ("_seq", "_source_ts", "_deleted")
_TYPES = {"int32": "INT", "int64": "BIGINT", "string": "STRING"}


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
) -> str:
    """Apply the winners in a view to a table.

    The view has the table's columns as `c0`, `c1` and so on, and `_seq`, `_source_ts`, `gone`; for
    columns that events leave out `l<n>` with the last `value` that was told and its `_seq`.
    `emptied` is the last truncate, and `empties` whether it is news for the table.
    """
    newer = "coalesce(s._seq > t._seq, true)"
    old = "false" if emptied is None else f"t._seq < {_place(emptied)}"
    payload = [(n, name) for n, name in enumerate(columns) if name not in SYSTEM]
    gone = "s.gone" if emptied is None or not soft else f"(s.gone OR s._seq < {_place(emptied)})"
    system = {"_seq": "s._seq", "_source_ts": "s._source_ts", "_deleted": gone if soft else "false"}
    own = {name: system[name] for name in SYSTEM if name in columns}
    # a row that was removed takes its values with it
    before = f"NOT {old}" if empties and not soft else "true"
    told = {n: _told(n, name, before) for n, name in payload if name in left_out}
    sets = {name: told.get(n, f"s.c{n}") for n, name in payload} | own
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
    return "\n".join(lines)


def _told(number: int, name: str, before: str) -> str:
    place = f"s.l{number}._seq"
    return (
        f"CASE WHEN coalesce({place} > t._seq, {place} IS NOT NULL) THEN s.l{number}.value "
        f"WHEN {before} THEN t.{quoted(name)} END"
    )


def _assignments(sets: dict[str, str]) -> str:
    return ", ".join(f"{quoted(name)} = {value}" for name, value in sets.items())


def _place(place: Place) -> str:
    pairs = zip(SEQ, place, strict=True)
    parts = [f"'{f.name}', CAST({_literal(v)} AS {_TYPES[str(f.type)]})" for f, v in pairs]
    return f"named_struct({', '.join(parts)})"


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else f"X'{value.encode().hex()}'"
