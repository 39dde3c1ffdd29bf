"""Change files from their lines to rows of a log: what is told by a shape is what parsing tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.load import load_text
from distributary.engine.planning.planner import Planner
from distributary.model.record import RAW
from distributary.registry.record_schemas import InferredSchemas
from distributary.source.files import json_files as files_json
from distributary.source.files.file_bytes import LocalFiles
from distributary.source.files.file_list import ListedFile
from distributary.source.files.source import FilesReader
from distributary.stage import job
from distributary.stage.decoding import SHARD, _with_shard
from distributary.stage.exchange import facts_of, spread
from distributary.stage.job import Staged
from distributary.stage.land import land
from distributary.stage.sort import sort
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PIPELINE = """
name: shop
source: {{type: files, path: {lake}/in, format: json, settle: 0s}}
cdc: {{format: datastream}}
tables: {{each: "{{table}}"}}
lake: {{path: {lake}}}
"""
TASK = pa.record_batch({"task": [0]})


def event(number: int, **payload: Any) -> dict[str, Any]:
    return {
        "uuid": f"ee7534b0-71d8-4164-8ad8-1eaf{number:08d}",
        "read_timestamp": "2024-05-09T06:56:54.000Z",
        "source_timestamp": f"2024-05-09T06:56:53.{number % 1000:03d}Z",
        "object": "shop_orders",
        "read_method": "mysql-cdc-binlog",
        "sort_keys": [1_715_237_813_000 + number, "mysql-bin.000001", number],
        "source_metadata": {
            "table": "users" if number % 7 == 0 else "orders",
            "database": "shop" if number % 5 else "shop2",
            "primary_keys": ["id"],
            "log_file": "mysql-bin.000001",
            "log_position": number,
            "change_type": "INSERT",
            "is_deleted": False,
        },
        "payload": {"id": number, "name": f"name {number}", "amount": number / 4, **payload},
    }


def odd_lines(first: int) -> Iterator[bytes]:
    """Events of the usual kind, and between them one of each kind that is not."""
    for number in range(first, first + 40):
        yield json.dumps(event(number)).encode()
        one = event(number + 1000)
        source, payload = one["source_metadata"], one["payload"]
        match number % 20:
            case 0:
                payload["name"] = None
            case 1:
                del payload["amount"]
            case 2:
                one["source_timestamp"] = "2024-05-09 06:56:53.123456789"
            case 3:
                one["source_timestamp"] = None
            case 4:
                one["source_timestamp"] = 1_715_237_813_123
            case 5:
                one["source_timestamp"] = "no time"
            case 6:
                payload["new"] = "column"
            case 7:
                payload["amount"] = 2**70
            case 8:
                payload["name"] = '"source_timestamp": "2000-01-01" \\ \n {'
            case 9:
                source["table"] = None
            case 10:
                source["schema"] = "s"
            case 11:
                del one["source_metadata"]
            case 12:
                one = dict(reversed(one.items()))
            case 13:
                payload["id"] = None
            case 14:
                source["log_position"] = "x"
            case 15:
                one["uuid"] = 'a"source_timestamp": "1999-01-01T00:00:00Z"'
        text = json.dumps(one).encode()
        match number % 20:
            case 16:
                text = text[:-9]
            case 17:
                text = text.replace(b'"name": "name', b'"name": "na\tme')
            case 18:
                text = text[:-1] + b', "source_timestamp": "2020-01-01T00:00:00Z"}'
            case 19:
                text = text.replace(b'"amount": ', b'"amount": 0')
        yield text


class Lake:
    """Files that are staged one after the other, in this process."""

    def __init__(self, folder: Path) -> None:
        (folder / "in").mkdir(parents=True)
        config = load_text(PIPELINE.format(lake=folder), file="shop.yaml", environ={}).config
        self.bench = Bench(folder, ScratchRegistry(), config)
        self.bench.planner = Planner(
            config,
            registry=None,
            publisher=self.bench.publisher,
            inferred=InferredSchemas(folder / "inferred"),
        )
        self.folder, self.number = folder, 0

    def stage(self, *lines: bytes) -> Any:
        path = self.folder / "in" / f"{self.number}.json"
        path.write_bytes(b"\n".join(lines) + b"\n")
        file = ListedFile(self.number, path.name, path.stat().st_size, 10**18, 0)
        self.number += 1
        files = LocalFiles(str(path.parent), grows=False)
        reader = FilesReader(files, "json", "", settle_seconds=0, tasks=[[file]])
        planner, order = self.bench.planner, self.bench.order(now_us=1)
        planner.begin_batch()
        plan, staged = planner.task_plan(), Staged()
        staged.add(facts_of(sort(job._records(reader, [TASK], plan), plan, order)))
        planner.learn(staged.shapes, staged.carried)
        planner.resolve(staged.unresolved(planner.task_plan()))
        plan = planner.task_plan()
        for load in spread(staged.runs, staged.letters, plan.routing.routes, tasks=1):
            staged.add(facts_of(land(load, plan, order)))
        return self._told(staged)

    def _told(self, staged: Staged) -> Any:
        tables = {
            name: [pq.ParquetFile(self.folder / name / f.path).read().to_pylist() for f in files]
            for name, files in staged.files.items()
        }
        return staged.seen, staged.newest_us, staged.dead, staged.shapes, staged.skipped, tables


def test_odd_events_land_as_they_do_when_each_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[json.dumps(event(n)).encode() for n in range(30)]]
    batches += [list(odd_lines(first)) for first in (100, 200)]
    lake = Lake(tmp_path / "quick")
    looked: list[int] = []
    known = files_json.familiar_events

    def counted(array: pa.BinaryArray, shapes: Any) -> Any:
        found = known(array, shapes)
        looked.append(0 if found is None else int(found.familiar.sum()))
        return found

    monkeypatch.setattr(files_json, "familiar_events", counted)
    quick = [lake.stage(*lines) for lines in batches]
    assert looked[0] == 0 and min(looked[1:]) >= 40
    monkeypatch.setattr(files_json, "familiar_events", lambda *_: None)
    lake = Lake(tmp_path / "parsed")
    assert quick == [lake.stage(*lines) for lines in batches]
    assert {"NOT_JSON", "BAD_SOURCE_TIME", "NO_SOURCE_METADATA", "DUPLICATE_KEY"} <= {*quick[1][2]}


def test_a_reader_without_shapes_gives_raw_records(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.write_bytes(json.dumps(event(1)).encode())
    file = ListedFile(0, path.name, path.stat().st_size, 0, 0)
    reader = FilesReader(LocalFiles(str(tmp_path)), "json", "", settle_seconds=0, tasks=[[file]])
    (batch,) = reader(iter([TASK]))
    assert batch.schema == RAW


@given(
    st.lists(st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3), max_size=6),
    st.integers(0, 6),
)
def test_the_shard_comes_first_in_each_key(keys: list[list[str] | None], start: int) -> None:
    array = pa.array(keys, pa.list_(pa.string()))[start:]
    batch = _with_shard(pa.RecordBatch.from_arrays([array], names=["_key"]), "shop")
    expected = [[SHARD.name, *key] if key else key for key in keys[start:]]
    assert batch.column("_key").to_pylist() == expected
    assert batch.column(SHARD.name).to_pylist() == ["shop"] * len(expected)
