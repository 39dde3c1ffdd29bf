"""The time of a batch in expressions of `shape`: one value, which stays when it is staged again."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine import batch
from distributary.engine.kill_points import KillPoint
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.spark.in_process import in_process
from distributary.testing import Record, RecordSource, run

FILE = """
name: games
source: {{type: kafka, topics: [games], bootstrap_servers: "localhost:1"}}
payload: {{format: json}}
envelope: {{format: json, type: kind}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {root}/lake, checkpoint: {root}/checkpoints}}
shape:
  - {{where: "_timestamp < _batch_time", set: {{loaded: _batch_time, day: "_batch_time::DATE"}}}}
"""
RECORDS = [Record({"kind": kind, "n": n}) for n in range(2) for kind in ("chess", "go")]
LATE = Record({"kind": "go", "n": 9}, timestamp=datetime(2999, 1, 1, tzinfo=UTC))


class _Killed(BaseException):
    """Ends a run."""


def _no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def run_once(root: Path) -> None:
    pipeline = Pipeline.load(root / "games.yaml")
    with pipeline.open(in_process(_no_spark)) as context:
        source = RecordSource(RECORDS, ["games"], 1000)
        StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)


def times(root: Path, kind: str) -> set[datetime]:
    table = DeltaTable(str(root / "lake" / f"silver_{kind}")).to_pyarrow_table()
    return set(table["loaded"].to_pylist())


def test_all_rows_of_a_batch_have_its_time(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    result = run(FILE.format(root=tmp_path), [*RECORDS, LATE], batch_size=5)
    assert result.counts.filtered == 1
    rows = result.tables["silver_chess"].to_pylist() + result.tables["silver_go"].to_pylist()
    (loaded,) = {row["loaded"] for row in rows}
    assert before <= loaded <= datetime.now(UTC)
    assert {row["day"] for row in rows} == {loaded.date()}


def test_a_batch_that_is_staged_again_keeps_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "games.yaml").write_text(FILE.format(root=tmp_path))

    def die(now: object = None, *_: object) -> None:
        if now is KillPoint.AFTER_MANIFEST:
            raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(batch, "reached", die)
        with pytest.raises(_Killed):
            run_once(tmp_path)
    # the files of one table are lost, so that the batch has to be staged again
    lost = [*(tmp_path / "lake/silver_go").glob("*.parquet")]
    assert lost
    for file in lost:
        file.unlink()
    run_once(tmp_path)
    assert times(tmp_path, "chess") == times(tmp_path, "go")
    assert len(times(tmp_path, "go")) == 1
