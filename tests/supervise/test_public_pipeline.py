"""The `Pipeline` that users import: settings from Python, batches one by one, notebooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary import DistributaryError, ErrorCode, Lake, Pipeline
from distributary.config.file.document import PipelineFileError
from distributary.model.manifest import Counts
from distributary.observe.cards import load_trusted, registrations

HOSTILE = "<img src=x onerror=alert(1)>"


def orders(root: Path, **more: Any) -> dict[str, Any]:
    """Return settings of a pipeline that reads one file a batch."""
    return {
        "name": "orders",
        "source": {
            "type": "files",
            "path": root / "in",
            "format": "json",
            "settle": "0s",
            "max_files_per_batch": 1,
        },
        "tables": {"each": "orders"},
        "lake": {"path": root / "lake"},
        **more,
    }


def write_files(root: Path, numbers: range) -> None:
    (root / "in").mkdir(exist_ok=True)
    for number in numbers:
        rows = [{"id": 10 * number + n, "item": "tea"} for n in range(3)]
        text = "\n".join(map(json.dumps, rows))
        (root / "in" / f"{number:03}.json").write_text(text)


def test_settings_are_those_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "only-for-the-broker")
    source = {
        "type": "kafka",
        "bootstrap_servers": "localhost:9092",
        "topics": ["wrapper"],
        "options": {"kafka.sasl.password": "${env:KAFKA_SECRET}"},
    }
    pipeline = Pipeline.from_dict(orders(tmp_path, source=source, payload={"format": "json"}))
    assert pipeline.config.source.type == "kafka"
    assert "only-for-the-broker" in pipeline.loaded.secrets
    assert "only-for-the-broker" not in repr(pipeline)
    changed = Pipeline.from_dict(orders(tmp_path), **{"lake.path": str(tmp_path / "other")})
    assert changed.lake == str(tmp_path / "other")


def test_wrong_settings_are_named_all_at_once(tmp_path: Path) -> None:
    wrong = orders(tmp_path, trigger="evry 5s", tabels={"each": "x"})
    with pytest.raises(PipelineFileError) as caught:
        Pipeline.from_dict(wrong)
    assert {(p.path, p.suggestion) for p in caught.value.problems} >= {("tabels", "tables")}
    assert len(caught.value.problems) == 2
    assert "argument settings" in str(caught.value)
    with pytest.raises(DistributaryError) as refused:
        Pipeline.from_dict([("name", "orders")])  # type: ignore[arg-type]
    assert refused.value.code == ErrorCode.CONFIG_INVALID


def test_batches_are_yielded_and_leaving_the_loop_stops_the_run(
    tmp_path: Path, tasks: SparkSession
) -> None:
    write_files(tmp_path, range(4))
    pipeline = Pipeline.from_dict(orders(tmp_path))
    for batch in pipeline.batches(trigger="available_now", spark=tasks):
        assert batch.counts == Counts(read=3, written=3)
        break
    stopped = Lake(tmp_path / "lake").cuts()[0].batch
    assert stopped < 3
    rest = [batch.batch for batch in pipeline.batches(trigger="available_now", spark=tasks)]
    assert rest == list(range(stopped + 1, 4))
    assert Lake(tmp_path / "lake")["orders"].to_arrow().num_rows == 12
    # a run that has nothing to do yields nothing, and ends
    assert list(pipeline.batches(trigger="available_now", spark=tasks)) == []


def test_a_run_that_fails_raises_in_the_loop(tmp_path: Path, tasks: SparkSession) -> None:
    write_files(tmp_path, range(1))
    pipeline = Pipeline.from_dict(orders(tmp_path))
    with pipeline.open(tasks), pytest.raises(DistributaryError) as caught:
        list(Pipeline.from_dict(orders(tmp_path)).batches(trigger="available_now", spark=tasks))
    assert caught.value.code == ErrorCode.CHECKPOINT_OWNED


def test_commands_say_that_the_pipeline_has_no_file(tmp_path: Path, tasks: SparkSession) -> None:
    write_files(tmp_path, range(1))
    Pipeline.from_dict(orders(tmp_path)).run(trigger="available_now", spark=tasks)
    (card,) = registrations(str(tmp_path / "lake"))
    assert card.file == ""
    with pytest.raises(DistributaryError) as caught:
        load_trusted(card, str(tmp_path / "lake"))
    assert caught.value.code == ErrorCode.NOT_FOUND


def test_a_notebook_shows_pipeline_run_batch_and_letters(
    tmp_path: Path, tasks: SparkSession
) -> None:
    write_files(tmp_path, range(1))
    (tmp_path / "in" / "999.json").write_text(f'{{"id": "{HOSTILE}", "item": \n')
    pipeline = Pipeline.from_dict(orders(tmp_path))
    assert "orders" in pipeline._repr_html_()
    batches = list(pipeline.batches(trigger="available_now", spark=tasks))
    assert "<td>orders</td><td>3</td>" in batches[0]._repr_html_()
    summary = pipeline.run(trigger="available_now", spark=tasks)
    assert "read 0" in summary._repr_html_()
    assert "dead letters 1" in pipeline._repr_html_()
    letters = Lake(tmp_path / "lake").dead_letters()
    shown = letters._repr_html_()
    assert len(letters) == letters.num_rows == 1
    assert letters.to_pylist()[0]["error_code"] in shown
    assert HOSTILE not in shown
    assert letters.to_polars().height == letters.to_pandas().shape[0] == 1
