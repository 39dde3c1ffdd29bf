"""Records that are landed whole, and read again by the jobs that share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.engine.shards import share_source
from distributary.engine.shards.share_source import BronzeReader
from distributary.model.record import RAW
from distributary.source.delta.source import SourceFile, read_file
from distributary.stage.unwrap import MARKED, ShardFilter
from distributary_lab.simulate.game_records import GamesPlan
from tests.stage.conftest import Bench
from tests.stage.test_stage import MakeBench, games

LANDS = "shard: {of: games, part: bronze, shards: 3}"


def landed(one: Bench, raw: list[pa.RecordBatch]) -> list[SourceFile]:
    staged = one.stage(raw)
    assert staged.dead == {}
    assert staged.skipped == 0
    assert staged.records == {"bronze_events": staged.seen}
    files = staged.files["bronze_events"]
    folder = one.lake / "bronze_events"
    return [
        SourceFile(str(folder / f.path), f.rows, 0, 0, partition=f.partition_values) for f in files
    ]


def taken(files: list[SourceFile], part: int | str) -> list[dict[str, Any]]:
    reader = BronzeReader((files,), part, 3)
    batches = ShardFilter().own(reader(iter([pa.record_batch({"task": [0]})])))
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_record_comes_back_as_it_was_to_one_shard(bench: MakeBench) -> None:
    one = bench("{bronze: bronze_events}", LANDS)
    raw, _ = games(one, GamesPlan(games=6, versions=2, records=4, bad=17))
    files = landed(one, raw)
    shares = [taken(files, part) for part in range(3)]
    assert all(shares)
    again = sorted((row for share in shares for row in share), key=lambda row: row["offset"])
    assert again == [row for batch in raw for row in batch.to_pylist()]


def test_files_of_other_types_are_counted_and_not_opened(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench("{bronze: bronze_events, partition_by: [_type]}", LANDS)
    raw, _ = games(one, GamesPlan(games=6, versions=2, records=4, bad=17))
    files = landed(one, raw)
    opened: Counter[str] = Counter()

    def counted(file: SourceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        opened[file.path] += 1
        return read_file(file, columns)

    monkeypatch.setattr(share_source, "read_file", counted)
    again, others = [], 0
    for part in range(3):
        share = ShardFilter()
        reader = BronzeReader((files,), part, 3)
        for batch in share.own(reader(iter([pa.record_batch({"task": [0]})]))):
            again += batch.to_pylist()
        others += share.others
    sent = [row for batch in raw for row in batch.to_pylist()]
    assert sorted(again, key=lambda row: row["offset"]) == sent
    assert others == 2 * len(sent)
    # each file once, and three times the file of records without a type
    types = [file.partition["_type"] for file in files]
    assert len(types) > 6
    assert [opened[file.path] for file in files] == [3 if name is None else 1 for name in types]


def test_the_unified_job_takes_what_has_a_type(bench: MakeBench) -> None:
    one = bench("{bronze: bronze_events}", LANDS)
    raw, _ = games(one, GamesPlan(games=2, versions=1, records=4, bad=17))
    types = one.rows(one.sorted(raw), "bronze_events")["type"]
    assert types.null_count
    assert len(taken(landed(one, raw), "unified")) == len(types) - types.null_count


def test_odd_records_come_back_too(bench: MakeBench, tmp_path: Path) -> None:
    one = bench("{bronze: bronze_events}", LANDS)
    # the registry knows the wrapper once somebody has sent something
    games(one, GamesPlan(games=1, versions=1, records=1))
    header = [{"key": "h", "value": None}, {"key": "h", "value": b"\x00"}]
    odd = [
        {"key": None, "value": None, "headers": None},
        {"key": b"k", "value": None, "headers": []},
        {"key": b"", "value": b"", "headers": header},
        {"key": b"\xff", "value": b"\x00", "headers": None},
    ]
    place = {"topic": "wrapper", "partition": 7, "timestamp": None}
    rows = [row | place | {"offset": number} for number, row in enumerate(odd)]
    raw = [pa.RecordBatch.from_pylist(rows, RAW)]
    assert taken(landed(one, raw), 0) == raw[0].to_pylist()


def test_what_is_not_marked_passes(bench: MakeBench) -> None:
    plain = pa.RecordBatch.from_pylist([], RAW)
    share = ShardFilter()
    assert list(share.own([plain])) == [plain]
    rows = [dict.fromkeys(RAW.names) | {"mine": number == 1} for number in range(3)]
    own = list(share.own([pa.RecordBatch.from_pylist(rows, MARKED)]))
    assert [batch.num_rows for batch in own] == [1]
    assert own[0].schema.names == RAW.names
    assert share.others == 2
