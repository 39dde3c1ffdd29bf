"""A small lake of games for the tests of whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from distributary.engine.pipeline import Pipeline
from distributary.publish.formats.table_format_entry import format_at
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink, Round, Sent
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

TABLES = "{bronze: bronze_events, each: 'silver_{type}', unified: unified_gold}"


@dataclass
class Games:
    """A source table, a registry folder, a pipeline file, and the lake they feed."""

    root: Path
    plan: GamesPlan
    records_per_file: int = 50_000

    def __post_init__(self) -> None:
        self.registry = FileRegistry(self.root / "schemas", durable=False)
        self.sink = DeltaSink(
            str(self.root / "lake" / "wrapper"), records_per_file=self.records_per_file
        )
        self._rounds = stream_rounds(self.plan, registry=self.registry)
        self.sent: list[Sent] = []

    def write_file(
        self,
        *,
        tables: str = TABLES,
        extra: str = "",
        batch: int = 250_000,
        timed: bool = False,
        lake: str = "",
    ) -> Path:
        path = self.root / "games.yaml"
        value = "wrapper, timestamp: produced_at" if timed else "wrapper"
        path.write_text(
            f"""
name: games
source: {{type: delta, path: {self.lake}/wrapper, value: {value}, max_records_per_batch: {batch}}}
registry: {{path: {self.root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}
tables: {tables}
lake: {{path: {self.lake}{lake and f", {lake}"}}}
{extra}
"""
        )
        return path

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    def send_round(self) -> Round | None:
        """The next version of every game; None when all were sent."""
        one = next(self._rounds, None)
        if one is not None:
            self.sink.write_arrow(one.arrow())
            self.sent.append(one.sent())
        return one

    def send_all(self) -> None:
        while self.send_round() is not None:
            pass

    def pipeline(self, **settings: Any) -> Pipeline:
        return Pipeline.load(self.write_file(**settings))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return read(self.lake / table).to_pylist()

    def tables(self, prefix: str = "silver_") -> list[str]:
        return sorted(p.name for p in self.lake.glob(f"{prefix}*") if format_at(str(p)))

    def offsets(self) -> Iterator[int]:
        """Offsets of everything that is in a table per type or among the dead letters."""
        for table in self.tables():
            yield from column(self.lake / table, "_offset")
        if (self.lake / "dead_letters").exists():
            yield from column(self.lake / "dead_letters", "offset")

    def assert_each_record_once(self) -> None:
        """The promise: every record of the source is in exactly one place, once."""
        expected = sum(s.messages for s in self.sent)
        counted = Counter(self.offsets())
        assert sorted(counted) == list(range(expected))
        assert set(counted.values()) <= {1}
        for table, name in (("bronze_events", "_offset"), ("unified_gold", "_offset")):
            if (self.lake / table).exists():
                doubled = [o for o, n in Counter(column(self.lake / table, name)).items() if n > 1]
                assert doubled == []
        assert Pipeline.load(self.root / "games.yaml").ledger().totals("games").balanced

    def assert_no_file_is_left(self) -> None:
        """Every file in a table's folder is one that its log names."""
        for table in [*self.tables(), "bronze_events", "unified_gold"]:
            files = (self.lake / table).rglob("*.parquet")
            there = {path for path in files if "_delta_log" not in path.parts}
            assert there == {Path(p) for p in DeltaTable(str(self.lake / table)).file_uris()}, table


def column(path: Path, name: str) -> list[Any]:
    values: list[Any] = read(path, [name])[name].to_pylist()
    return values


def read(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A table of any format, by the readers that people use."""
    if format_at(str(path)) == "parquet":
        frame = pd.read_parquet(path, columns=columns, dtype_backend="pyarrow")
        return pa.Table.from_pandas(frame, preserve_index=False)
    return DeltaTable(str(path)).to_pyarrow_table(columns=columns)
