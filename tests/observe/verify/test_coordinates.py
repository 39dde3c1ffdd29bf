"""Comparing where rows came from, table by table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import LastCommit
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import WrittenTable


def written(folder: Path, name: str) -> WrittenTable:
    path = str(folder / name)
    write_deltalake(path, pa.table({"_topic": ["t"], "_partition": [0], "_offset": [1]}))
    since = datetime(2026, 1, 1, tzinfo=UTC)
    own = ("games", "life", "stream", name, "each", "chess", path, 0, 0, None, None, since, 1, 1, 1)
    return WrittenTable(path, (LastCommit(*own),))


def test_tables_whose_long_names_begin_alike_are_held_side_by_side(tmp_path: Path) -> None:
    names = ("a_company_with_a_long_name_bronze", "a_company_with_a_long_name_chess")
    tables = [written(tmp_path, name) for name in names]
    with coordinates(Ledger(str(tmp_path)), tables) as compared:
        held = {compared._load(table).name for table in tables}
    assert len(held) == 2
