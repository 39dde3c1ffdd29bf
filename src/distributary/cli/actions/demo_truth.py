"""Tables of a lake against what a simulated database holds in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from distributary.observe.delta import open_table, read_rows
from distributary.simulate.cdc.kinds import Carried, canonical
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.shapes import avro_name

_NUMBERS = (Carried.DECIMAL, Carried.NUMBER)


@dataclass(frozen=True, slots=True)
class Held:
    """One table of the source: what it has there, and what of that is in the lake."""

    rows: int
    wrong: int
    """Rows that are missing, too many, or different."""


def held(model: ChangeModel, lake: Path, tables: Mapping[str, str]) -> dict[str, Held]:
    """For each table with a key, by its claim; `tables` says what it is called in the lake."""
    kinds = {
        table.shape.claim: {name: column.carried for name, column in table.columns.items()}
        for table in model.told
    }
    found: dict[str, Held] = {}
    for claim, expected in model.truth().items():
        columns = kinds[claim]
        name = tables.get(claim.text)
        table = open_table(str(lake / name)) if name else None
        rows = [] if table is None else read_rows(table).to_pylist()
        there = Counter(_texts(rows, columns, named=avro_name))
        wanted = Counter(_texts(expected, columns, named=str))
        wrong = (there - wanted).total() + (wanted - there).total()
        found[claim.text] = Held(len(expected), wrong)
    return found


def _texts(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Carried], *, named: Any
) -> Iterable[str]:
    for row in rows:
        values = [_plain(row.get(named(name)), carried) for name, carried in columns.items()]
        yield json.dumps(values, ensure_ascii=False)


def _plain(value: Any, carried: Carried) -> Any:
    if value is None:
        return None
    if carried in _NUMBERS:
        # the same number, however many zeros are behind its point
        return format(Decimal(str(value)).normalize(), "f")
    if carried is Carried.JSON and isinstance(value, str):
        return json.loads(value)
    return canonical(value)
