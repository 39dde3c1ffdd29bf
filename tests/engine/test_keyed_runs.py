"""Tables with a key through whole runs: crashes, letters that are sent again, proofs, repairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary import Pipeline
from distributary.engine import batch
from distributary.engine.progress.removal import dead_letters_of
from distributary.engine.steps import commits, merges
from distributary.errors import ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.operations.repair.rebuild_table import rebuild_table
from distributary.operations.repair.verify_table import verify_table
from distributary.operations.replay import LANE, replay
from tests.lakes.changes import CHANGE_MOMENTS


class Players:
    """A stream of JSON records, and the pipeline that keeps a row for each player."""

    def __init__(self, root: Path, keys: str) -> None:
        self.root, self.lake = root, root / "lake"
        self.sent: list[dict[str, Any]] = []
        self.write(keys)

    def write(self, keys: str) -> None:
        """Write the pipeline file."""
        (self.root / "players.yaml").write_text(
            f"""
name: players
source: {{type: delta, path: {self.root}/events, topic: players}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}", unified: all_players}}
keys: [{keys}]
lake: {{path: {self.lake}}}
"""
        )

    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.root / "players.yaml")

    def send(self, *records: dict[str, Any]) -> None:
        self.sent += records
        values = pa.array([json.dumps(r).encode() for r in records], pa.binary())
        write_deltalake(str(self.root / "events"), pa.table({"value": values}), mode="append")

    def rows(self, table: str = "silver_players") -> list[dict[str, Any]]:
        rows = DeltaTable(str(self.lake / table)).to_pyarrow_table().to_pylist()
        kept = [{k: v for k, v in row.items() if k in ("id", "n", "op")} for row in rows]
        return sorted(kept, key=lambda row: (row["id"], row["n"]))

    def agrees(self) -> bool:
        """Return whether the rows are what the log says."""
        return verify_table(self.pipeline(), self.known()).verified.agrees

    def known(self) -> TableSummary:
        tables = self.pipeline().ledger().tables()
        return next(table for table in tables if table.table == "silver_players")

    def expected(self) -> list[dict[str, Any]]:
        """Return the rows as a dict by key would have them."""
        rows: dict[int, dict[str, Any]] = {}
        for record in sorted(self.sent, key=lambda r: r["n"]):
            rows[record["id"]] = record
        kept = (row for row in rows.values() if row["op"] != "D")
        return sorted(kept, key=lambda row: row["id"])


class _Killed(BaseException):
    """Nobody catches it: what is done up to here is on disk, nothing else happens."""


KEYS = """{key: [id], order: [n], delete_when: "op = 'D'", history: true}"""


def test_a_crash_at_each_step_is_harmless(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Players(tmp_path, KEYS)
    number = 0
    for moment in CHANGE_MOMENTS:
        for _ in range(4):
            op = "D" if number % 5 == 4 else "U"
            # every third record is older than one that came before it
            order = number - 7 if number % 3 == 0 else number
            players.send({"id": number % 4, "n": order * 10 + number % 3, "op": op})
            number += 1

        def die(now: object = None, *args: object, wanted: object = moment) -> None:
            if now is wanted:
                raise _Killed

        with monkeypatch.context() as patch:
            for module in (batch, commits, merges):
                patch.setattr(module, "reached", die)
            with pytest.raises(_Killed):
                players.pipeline().run(spark=tasks)
    players.pipeline().run(spark=tasks)
    assert players.rows() == players.expected()
    assert len(players.rows("silver_players_log")) == len(players.sent)
    assert len(players.rows("silver_players_history")) == len(players.sent)
    assert len(players.rows("all_players")) == len(players.sent)
    assert players.agrees()


def test_letters_that_are_sent_again_fall_in_their_place(
    tmp_path: Path, tasks: SparkSession
) -> None:
    rule = "expectations: [{name: known, check: n <> 5, action: dead_letter}]"
    players = Players(tmp_path, KEYS)
    file = tmp_path / "players.yaml"
    text = file.read_text()
    file.write_text(text + rule)
    players.send(
        {"id": 1, "n": 4, "op": "U"}, {"id": 1, "n": 5, "op": "U"}, {"id": 2, "n": 5, "op": "D"}
    )
    players.send({"id": 1, "n": 6, "op": "U"}, {"id": 2, "n": 4, "op": "U"})
    done = players.pipeline().run(spark=tasks)
    assert done.counts == Counts(read=5, written=3, dead_lettered=2)
    assert [row["n"] for row in players.rows()] == [6, 4]
    file.write_text(text)
    pipeline = players.pipeline()
    letters = dead_letters_of(pipeline)
    with pipeline.open(tasks, lane=LANE) as context:
        again = replay(context, letters, letters.select(reason=ErrorCode.EXPECTATION_FAILED))
    assert again.replayed == 2
    # the letter of player 1 is older than its row, and that of player 2 deletes it
    assert players.rows() == players.expected() == [{"id": 1, "n": 6, "op": "U"}]
    assert len(players.rows("silver_players_log")) == 5

    # a row that somebody has changed is found by the log, and made again from it
    table = DeltaTable(str(players.lake / "silver_players"))
    table.delete("id = 1")
    assert not players.agrees()
    rebuild_table(players.pipeline(), players.known())
    assert players.rows() == players.expected()
    assert players.agrees()
