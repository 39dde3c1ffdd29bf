"""Bronze that is divided by type: what is written, and that every reader of bronze finds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.catalog.iceberg_catalog import open_catalog
from distributary.config.lake import LakeConfig, Maintain, Optimize
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.engine.pipeline import Pipeline
from distributary.engine.shards import share_source
from distributary.model.manifest import Counts
from distributary.observe.trace import Coordinates, trace_offset
from distributary.operations.erase import erase, where
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from distributary.source.delta.source import DeltaSource, SourceFile, read_file
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.shards.test_shards_running import Spread
from tests.engine.test_shaped_tables import Orders
from tests.lakes.games import Games
from tests.operations.test_erase_running import assert_proven, counts_of
from tests.operations.test_query import ask


class Kinds(Orders):
    """Records of several types in one topic, each of which names its own."""

    def of_types(self, by: str = "_type", *, more: str = "") -> Pipeline:
        self.pipeline(tables=f", partition_by: [{by}]{more}")
        file = self.root / "orders.yaml"
        file.write_text(file.read_text().replace("silver_{topic}", "silver_{field:kind}"))
        return Pipeline.load(file)

    def send_kinds(self, *kinds: str | None) -> None:
        self.send(*({"kind": kind, "email": f"{kind}@x.org"} for kind in kinds))

    @property
    def bronze(self) -> DeltaTable:
        return DeltaTable(str(self.lake / "bronze"))

    def partitions(self) -> Counter[str | None]:
        """Return the number of files of each partition; a file has records of that type alone."""
        count: Counter[str | None] = Counter()
        for kind in {row["_type"] for row in self.rows("bronze")}:
            types = {row["type"] for row in self.rows("bronze") if row["_type"] == kind}
            assert kind is None or types == {kind}
        for action in pa.table(self.bronze.get_add_actions(flatten=True)).to_pylist():
            count[action["partition._type"]] += 1
        return count


@pytest.fixture
def orders(tmp_path: Path) -> Kinds:
    return Kinds(tmp_path)


def test_all_who_read_bronze_find_it_by_type(orders: Kinds) -> None:
    pipeline = orders.of_types()
    for _ in range(2):
        orders.send_kinds("a", "b", "b", None)
        assert counts_of(pipeline) == Counts(read=4, written=3, dead_lettered=1)
    assert orders.bronze.metadata().partition_columns == ["_type"]
    assert orders.partitions() == {"a": 2, "b": 2, None: 2}
    lake = str(orders.lake)

    # commits and a snapshot name the partition of each file to those who read bronze as a source
    settings = {"type": "delta", "path": f"{lake}/bronze", "value": "payload"}
    whole = DeltaSource(DeltaSourceConfig.model_validate(settings))
    commits = DeltaSource(DeltaSourceConfig.model_validate(settings | {"starting_version": 0}))
    for source in (whole, commits):
        files = source.files(source.first(), source.newest())
        kinds = Counter({file.partition["_type"]: file.rows for file in files})
        assert sorted(map(str, kinds)) == ["None", "a", "b"] and len(files) == 6

    assert ask(orders.lake, "select count(*) n from bronze where type = 'b'") == [{"n": 4}]
    places = trace_offset(lake, Coordinates("orders", 0, 1)).places
    assert {place.table for place in places} == {"bronze", "silver_b"}

    wishes = Wishes(Maintain(optimize=Optimize(min_files=2)), [UpkeepStep.OPTIMIZE])
    maintain(lake, jobs_of(lake), wishes)
    assert orders.partitions() == {"a": 1, "b": 1, None: 1}
    assert_proven(orders)
    erase(lake, where("email = 'b@x.org'"))
    assert Counter(row["type"] for row in orders.rows("bronze")) == {"a": 2, None: 2}
    assert_proven(orders)


def test_shards_count_all_records_and_open_their_own_files(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=5, versions=2, records=3, bad=6))
    spread = Spread(games, tasks)
    games.send_all()
    tables = "{bronze: bronze_events, each: 'silver_{type}', partition_by: [_type, _date]}"
    games.write_file(tables=tables, timed=True)
    spread.install(2)
    opened: Counter[str] = Counter()

    def counted(file: SourceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        opened[file.partition["_type"] or ""] += 1
        return read_file(file, columns)

    monkeypatch.setattr(share_source, "read_file", counted)
    read = spread.run("games", "games-shard-0", "games-shard-1")
    assert set(read.values()) == {36}
    games.assert_each_record_once()
    types = {row["type"] for row in games.rows("bronze_events")} - {None}
    assert {name: count for name, count in opened.items() if name} == dict.fromkeys(types, 1)
    assert opened[""] == 2


def test_a_table_that_exists_keeps_its_partitions(orders: Kinds) -> None:
    orders.send_kinds("a", "b")
    counts_of(orders.of_types("_type"))
    orders.send_kinds("b", "c")
    pipeline = orders.of_types("_topic")
    assert counts_of(pipeline).balanced
    assert orders.partitions() == {"a": 1, "b": 2, "c": 1}

    other = Kinds(orders.root / "other")
    other.root.mkdir()
    other.send_kinds("a", "b")
    counts_of(other.of_types("_topic"))
    other.send_kinds("b", "c")
    assert counts_of(other.of_types("_type")).balanced
    assert other.bronze.metadata().partition_columns == []
    assert [row["type"] for row in other.rows("bronze")] == ["a", "b", "b", "c"]
    assert "_type" not in other.rows("bronze")[0]


def test_iceberg_shows_the_same_partitions(orders: Kinds) -> None:
    orders.send_kinds("a", "b", "b", None)
    assert counts_of(orders.of_types(more=", format: iceberg")).balanced
    assert orders.partitions() == {"a": 1, "b": 1, None: 1}
    place = LakeConfig.model_validate({"path": str(orders.lake), "iceberg": {"type": "sql"}})
    with open_catalog(place) as catalog:
        table = catalog.load_table(("default", "bronze"))
        assert [field.name for field in table.spec().fields] == ["_type"]
        only_b = table.scan(row_filter="_type == 'b'")
        assert [task.file.record_count for task in only_b.plan_files()] == [2]
        assert set(only_b.to_arrow()["type"].to_pylist()) == {"b"}


def test_folders_of_plain_files_are_divided_too(orders: Kinds) -> None:
    orders.send_kinds("a", "b", "b", None)
    assert counts_of(orders.of_types(more=", format: parquet")).balanced
    frame = pd.read_parquet(orders.lake / "bronze")
    assert Counter(frame["by_type"]) == {"a": 1, "b": 2, "null": 1}
    assert frame["type"].dropna().tolist() == frame["_type"].dropna().tolist()
