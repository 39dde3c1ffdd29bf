"""Repairs of a lake whose cluster cannot be reached from here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from distributary.cli.command import live
from distributary.cli.command.live import session_for
from distributary.config.load import load_text
from distributary.errors import ErrorCode, SetupError
from distributary.spark.in_process import is_in_process
from distributary.spark.settings import SparkSettings
from tests.cli.conftest import Cli
from tests.engine.test_keyed_runs import KEYS, Players
from tests.operations.repair.test_change_mending import unwritable

GONE = "spark://127.0.0.1:1"
RULE = "expectations: [{name: known, check: n <> 5, action: dead_letter}]"


def test_small_repairs_need_no_cluster(
    cli: Cli, tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    players, file = Players(tmp_path, KEYS), tmp_path / "players.yaml"
    text = file.read_text() + f"spark: {{master: '{GONE}'}}\n"
    file.write_text(text + RULE)
    players.send(*({"id": n % 3, "n": n, "op": "U"} for n in range(5)))
    assert players.pipeline().run(spark=tasks).counts.balanced
    players.send({"id": 2, "n": 5, "op": "U"}, {"id": 1, "n": 6, "op": "U"})
    with unwritable(players.lake / "all_players"):
        assert players.pipeline().run(spark=tasks).still_parked.tables == 1
    file.write_text(text)

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(live, "start_spark", refuse)
    assert cli("resume", "all_players", "--file", file).out.startswith("1 of 1 batch")
    assert cli("dlq", "replay", "--file", file, "--yes", "--json").json["replayed"] == 1
    rebuilt = cli("rebuild", "silver_players", "--file", file, "--json")
    assert (rebuilt.code, rebuilt.json["rows"]) == (0, 3)
    shutil.rmtree(players.lake / "_checkpoints" / "players")
    assert "batch 1" in cli("recover", file).out
    assert players.rows() == players.expected()
    assert len(players.rows("all_players")) == len(players.sent)


def letters(count: int, code: ErrorCode = ErrorCode.PAYLOAD_MISMATCH) -> pa.Table:
    return pa.table({"error_code": [str(code)] * count})


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SparkSettings]]:
    """The settings of the sessions that are started."""
    started: list[SparkSettings] = []

    def start(*given: object, settings: SparkSettings) -> Any:
        started.append(settings)
        return nullcontext("a session")

    monkeypatch.setattr(live, "start_spark", start)
    yield started


def chosen(selection: pa.Table, more: str = "", *, spark: str = "") -> object:
    """Return the session that a replay of some letters gets."""
    text = f"""
name: players
source: {{type: delta, path: ./events}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}"{more}}}
lake: {{path: ./lake}}
spark: {{master: '{GONE}', conf: {{spark.submit.deployMode: client, spark.a: b}}{spark}}}
"""
    loaded = load_text(text, file="players.yaml", environ={})
    call: Any = SimpleNamespace(out=SimpleNamespace(verbosity=0), log=SimpleNamespace(path=None))
    pipeline: Any = SimpleNamespace(loaded=loaded, config=loaded.config)
    with session_for(call, pipeline, selection) as session:
        return session


def test_few_letters_that_need_spark_have_it_on_this_machine(begun: list[SparkSettings]) -> None:
    assert is_in_process(chosen(letters(1)))
    assert begun == []
    assert chosen(letters(1), ", publisher: spark") == "a session"
    assert chosen(letters(1, ErrorCode.CRASHED_DECODER)) == "a session"
    assert [settings.master for settings in begun] == ["local[*]"] * 2
    assert all(settings.conf == {"spark.a": "b"} for settings in begun)
    # of a server of Spark Connect nobody knows what else it is needed for
    crashed = letters(1, ErrorCode.CRASHED_DECODER)
    assert chosen(crashed, spark=", remote: 'sc://gone'") == "a session"
    assert begun[-1].remote == "sc://gone"


def test_many_letters_are_for_the_cluster_or_for_a_master_that_is_named(
    begun: list[SparkSettings],
) -> None:
    with pytest.raises(SetupError) as caught:
        chosen(letters(1001))
    assert "no master answers: 127.0.0.1:1" in str(caught.value)
    assert "DISTRIBUTARY_SPARK__MASTER='local[*]'" in str(caught.value.next_step)
    assert begun == []
