"""Aggregate tables through whole runs: crashes, tables that wait, repairs, proofs."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.changes import aggregate_tables as changes
from distributary.changes.aggregate_tables import AggregateOrder
from distributary.changes.merge_order import MergeResult
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine import batch
from distributary.engine.kill_points import KillPoint
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import liveness
from distributary.engine.steps import aggregate_commits, commits, merges
from distributary.errors import ConfigError, PublishError, TableBehindError
from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.status.status import status
from distributary.operations.erase import erase, find, where
from distributary.operations.plan.trial_registry import preview
from distributary.operations.repair.rebuild_table import rebuild_table
from distributary.operations.repair.resume_table import resume
from distributary.operations.repair.verify_table import verify_aggregate
from distributary.publish.base import Outcome, Published, TableColumns
from distributary.publish.direct import DirectPublisher
from distributary.spark.in_process import in_process
from distributary.testing import Record, RecordSource

ENTRY = """{tables: ["silver_*"], name: "gold_{type}_player_agg", group_by: [player], columns:
    {games: "count(*)", points: "sum(score)", best: "max(score)", worst: "min(score)",
     mean: "avg(score)"}}"""
KEYS = "keys: [{key: [id], order: [n], delete_when: \"op = 'D'\"}]"


class _Killed(BaseException):
    """Nobody catches it: what is done up to here is on disk, nothing else happens."""


class Games:
    """A stream of JSON records of two games, and the groups that they should make."""

    def __init__(self, root: Path, *, more: str = "", entries: str = ENTRY) -> None:
        self.root, self.lake = root, root / "lake"
        self.sent: list[dict[str, Any]] = []
        self.keyed = "keys" in more
        self.write(more, entries)

    def write(self, more: str = "", entries: str = ENTRY) -> None:
        (self.root / "games.yaml").write_text(
            f"""
name: games
source: {{type: kafka, topics: [games], bootstrap_servers: "localhost:1"}}
payload: {{format: json}}
envelope: {{format: json, type: kind}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {self.lake}, checkpoint: {self.root}/checkpoints}}
aggregates: [{entries}]
{more}
"""
        )

    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.root / "games.yaml")

    def send(self, *records: dict[str, Any]) -> None:
        self.sent += records

    def some(self, count: int) -> None:
        """Send records of players who come again, some of them older than those before."""
        for number in range(len(self.sent), len(self.sent) + count):
            self.send(
                {
                    "kind": ("chess", "go")[number % 2],
                    "id": number % 5,
                    "n": number - 9 if number % 4 == 0 else number,
                    "op": "D" if number % 7 == 6 else "U",
                    "player": f"p{number % 3}",
                    "score": None if number % 6 == 5 else number * 37 % 23 - 9,
                }
            )

    def run(self, batch_size: int = 1000) -> None:
        with self.pipeline().open(in_process(_no_spark)) as context:
            records = [Record(record) for record in self.sent]
            source = RecordSource(records, ["games"], batch_size)
            StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)

    def groups(self, kind: str) -> list[dict[str, Any]]:
        path = self.lake / f"gold_{kind}_player_agg"
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
        shown = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
        return sorted(shown, key=lambda row: row["player"])

    def expected(self, kind: str) -> list[dict[str, Any]]:
        records = [record for record in self.sent if record["kind"] == kind]
        if self.keyed:
            last: dict[int, tuple[int, int, dict[str, Any]]] = {}
            for offset, record in enumerate(records):
                place = (record["n"], offset, record)
                last[record["id"]] = max(last.get(record["id"], place), place, key=lambda p: p[:2])
            records = [record for *_, record in last.values() if record["op"] != "D"]
        found = []
        for player in sorted({record["player"] for record in records}):
            mine = [record for record in records if record["player"] == player]
            scores = [record["score"] for record in mine if record["score"] is not None]
            found.append(
                {
                    "player": player,
                    "games": len(mine),
                    "points": sum(scores) if scores else None,
                    "best": max(scores, default=None),
                    "worst": min(scores, default=None),
                    "mean": sum(scores) / len(scores) if scores else None,
                }
            )
        return found

    def known(self, table: str) -> TableSummary:
        return next(t for t in self.pipeline().ledger().tables() if t.table == table)

    def agrees(self, kinds: Sequence[str] = ("chess", "go")) -> None:
        """Compare with plain Python, and let `verify` compare as well."""
        for kind in kinds:
            assert self.groups(kind) == self.expected(kind)
            check = verify_aggregate(self.pipeline(), self.known(f"gold_{kind}_player_agg"))
            assert check is not None
            assert check.agrees


def _no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


@pytest.mark.parametrize("more", ["", KEYS])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_groups_are_what_the_records_add_up_to(tmp_path: Path, more: str, size: int) -> None:
    games = Games(tmp_path, more=more)
    games.some(24)
    games.run(batch_size=size)
    games.agrees()
    games.some(9)
    games.run(batch_size=size)
    games.agrees()


@pytest.mark.parametrize("more", ["", KEYS])
def test_a_crash_at_each_step_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    games = Games(tmp_path, more=more)
    for moment in KillPoint:
        if moment is KillPoint.BEFORE_MERGE and not more:
            continue
        games.some(6)

        def die(now: object = None, *args: object, wanted: object = moment) -> None:
            if now is wanted:
                raise _Killed

        with monkeypatch.context() as patch:
            for module in (batch, commits, merges):
                patch.setattr(module, "reached", die)
            with pytest.raises(_Killed):
                games.run()
    games.run()
    games.agrees()


def test_a_crash_between_two_aggregate_tables_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path)
    games.some(10)
    games.run()
    games.some(10)
    done = aggregate_commits.merge_together

    def once(orders: Sequence[AggregateOrder]) -> Any:
        done(orders[:1])
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(aggregate_commits, "merge_together", once)
        with pytest.raises(_Killed):
            games.run()
    games.run()
    games.agrees()


def block(patch: pytest.MonkeyPatch, table: str) -> None:
    """Let every commit to a table fail."""
    merge, publish = aggregate_commits.merge_aggregates, DirectPublisher.publish
    together = aggregate_commits.merge_together
    error = PublishError("no", where=table, next_step="wait", reason="features")

    def merged(order: AggregateOrder) -> MergeResult:
        if order.table == table:
            raise error
        return merge(order)

    def published(self: DirectPublisher, entry: TableEntry, mark: Mark) -> Published:
        if entry.table.name == table:
            raise error
        return publish(self, entry, mark)

    def merged_together(orders: Sequence[AggregateOrder]) -> dict[str, MergeResult]:
        return together([order for order in orders if order.table != table])

    patch.setattr(aggregate_commits, "merge_aggregates", merged)
    patch.setattr(aggregate_commits, "merge_together", merged_together)
    patch.setattr(DirectPublisher, "publish", published)


@pytest.mark.parametrize("table", ["silver_chess", "gold_chess_player_agg"])
def test_a_table_that_could_not_be_read_once_gets_the_batches_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    games = Games(tmp_path, more=KEYS)
    games.some(8)
    games.run()
    read, failed = DirectPublisher.current_columns, []

    def fails_once(self: DirectPublisher, path: str) -> TableColumns | None:
        if path.endswith(f"/{table}") and not failed:
            failed.append(path)
            raise PublishError("no", where=path)
        return read(self, path)

    monkeypatch.setattr(DirectPublisher, "current_columns", fails_once)
    games.some(24)
    games.run(batch_size=8)
    assert failed
    assert games.groups("chess") == games.expected("chess")
    games.agrees()


@pytest.mark.parametrize("blocked", ["gold_chess_player_agg", "silver_chess"])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_table_that_waited_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str, by_hand: bool
) -> None:
    games = Games(tmp_path)
    games.some(8)
    games.run()
    before = games.groups("chess")
    with monkeypatch.context() as patch:
        block(patch, blocked)
        for _ in range(2):
            games.some(8)
            games.run()
    assert games.groups("go") == games.expected("go")
    assert games.groups("chess") == before
    assert games.known("gold_chess_player_agg").parked_batches == 2
    if by_hand:
        done = resume(games.pipeline(), blocked)
        assert {one.table for one in done} == {blocked, "gold_chess_player_agg"}
        assert all(one.outcome is Outcome.PUBLISHED for one in done)
    else:
        # a run tries what waits, first of all
        games.some(8)
        games.run()
    games.agrees()
    assert games.known("gold_chess_player_agg").parked_batches == 0


def test_a_damaged_table_is_found_and_computed_again(tmp_path: Path) -> None:
    games = Games(tmp_path)
    games.some(20)
    games.run()
    path = str(games.lake / "gold_chess_player_agg")
    DeltaTable(path).delete("player = 'p1'")
    check = verify_aggregate(games.pipeline(), games.known("gold_chess_player_agg"))
    assert check is not None
    assert (check.wrong, check.agrees) == (1, False)
    assert "p1" in check.examples[0]
    rebuild_table(games.pipeline(), games.known("gold_chess_player_agg"))
    games.agrees()
    games.some(6)
    games.run()
    games.agrees()


def test_a_rebuilt_table_takes_its_aggregates_along(tmp_path: Path) -> None:
    games = Games(tmp_path, more=KEYS)
    games.some(30)
    games.run(batch_size=10)
    DeltaTable(str(games.lake / "silver_go")).delete("player = 'p1'")
    assert not (verify_aggregate(games.pipeline(), games.known("gold_go_player_agg"))).agrees
    rebuild_table(games.pipeline(), games.known("silver_go"))
    games.agrees()


def test_an_aggregate_table_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    games = Games(tmp_path)
    games.some(12)
    games.run()
    rebuilt = games.lake / "gold_chess_player_agg"
    shutil.rmtree(rebuilt)
    with pytest.raises(TableBehindError):
        games.run()
    with pytest.raises(ConfigError):
        rebuild_table(games.pipeline(), games.known("gold_chess_player_agg"))


def test_another_definition_groups_all_rows_again(tmp_path: Path) -> None:
    games = Games(tmp_path)
    games.some(12)
    games.run()
    other = ENTRY.replace('points: "sum(score)"', 'points: "sum(score + 1)"')
    games.write(entries=other)
    games.some(6)
    games.run()
    for kind in ("chess", "go"):
        want = games.expected(kind)
        for row in want:
            mine = [r for r in games.sent if (r["kind"], r["player"]) == (kind, row["player"])]
            scores = [r["score"] + 1 for r in mine if r["score"] is not None]
            row["points"] = sum(scores) if scores else None
        assert games.groups(kind) == want


def test_a_column_that_comes_later_is_computed_from_then_on(tmp_path: Path) -> None:
    games = Games(tmp_path)
    games.send(*({"kind": "chess", "player": f"p{n % 2}"} for n in range(4)))
    games.run()
    assert games.groups("chess") == [{"player": f"p{n}", "games": 2} for n in range(2)]
    history = games.pipeline().ledger().schema_history()
    assert "points: not computed, no column score" in str(history)
    games.send({"kind": "chess", "player": "p0", "score": 7})
    games.run()
    rows = {row["player"]: row["points"] for row in games.groups("chess")}
    assert rows == {"p0": 7, "p1": None}


def test_a_table_of_another_program_is_left_alone(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    games = Games(tmp_path)
    games.some(4)
    path = games.lake / "gold_chess_player_agg"
    os.makedirs(games.lake)
    write_deltalake(str(path), pa.table({"mine": [1]}))
    with pytest.raises(ConfigError):
        games.run()
    assert DeltaTable(str(path)).to_pyarrow_table().to_pylist() == [{"mine": 1}]


def test_plan_shows_the_columns(tmp_path: Path) -> None:
    (tmp_path / "in" / "chess").mkdir(parents=True)
    (tmp_path / "in" / "chess" / "one.csv").write_text("player,score\nann,3\nbob,4\n")
    games = Games(tmp_path)
    text = (tmp_path / "games.yaml").read_text()
    lines = [
        f"source: {{type: files, path: {tmp_path}/in, format: csv, settle: 0s, "
        'pattern: "{type}/*.csv"}'
        if line.startswith("source")
        else line
        for line in text.splitlines()
        if not line.startswith(("payload", "envelope"))
    ]
    (tmp_path / "games.yaml").write_text("\n".join(lines))
    (gold,) = (t for t in preview(games.pipeline()).tables if t.role is Role.AGGREGATE)
    assert (gold.name, gold.new) == ("gold_chess_player_agg", True)
    columns = dict(gold.shaped)
    assert columns["player"] == "string"
    assert columns["points"] == "decimal(38,0)"
    assert columns["mean"] == "double"


@pytest.mark.parametrize("more", ["", KEYS])
def test_an_erasure_takes_rows_out_of_their_groups(tmp_path: Path, more: str) -> None:
    games = Games(tmp_path, more=more)
    games.some(20)
    games.run()
    lake = str(games.lake)
    condition = where("player = 'p1'")
    assert not find(lake, condition).refused
    found, certificate = erase(lake, condition)
    assert found.rows > 0
    assert not any("gold" in note for note in certificate["notes"])
    ids = {(r["kind"], r["id"]) for r in games.sent if r["player"] == "p1"}
    games.sent = [
        record
        for record in games.sent
        if record["player"] != "p1" and (not more or (record["kind"], record["id"]) not in ids)
    ]
    games.agrees()


def test_a_table_that_does_not_record_its_rule_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path)
    games.some(20)
    with monkeypatch.context() as patch:
        patch.setattr(changes, "RULE", "unknown")
        games.run()
    _, certificate = erase(str(games.lake), where("player = 'p1'"))
    names = ("gold_chess_player_agg", "gold_go_player_agg")
    for name in names:
        assert any(name in note and "rebuild" in note for note in certificate["notes"])
    assert any(row["player"] == "p1" for row in games.groups("chess"))
    for name in names:
        rebuild_table(games.pipeline(), games.known(name))
    games.sent = [record for record in games.sent if record["player"] != "p1"]
    games.agrees()


def test_the_status_counts_the_groups(tmp_path: Path) -> None:
    games = Games(tmp_path)
    games.some(20)
    games.run()
    (pipeline,) = status(str(games.lake), liveness=liveness).pipelines
    rows = {item.table.table: item.table.rows for item in pipeline.tables.shown}
    assert rows["gold_chess_player_agg"] == len(games.expected("chess"))
