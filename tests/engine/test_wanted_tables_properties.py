"""Shapes, keys and aggregates against plain Python: any cut into batches, kills and replays."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine import batch
from distributary.engine.kill_points import KillPoint
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.removal import dead_letters_of
from distributary.engine.steps import commits, merges
from distributary.model.manifest import Counts
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations.repair.verify_table import verify_aggregate, verify_table
from distributary.operations.replay import LANE, replay
from distributary.spark.in_process import in_process
from distributary.testing import Record, RecordSource

STRICT, LENIENT = "CAST(raw AS INT)", "TRY_CAST(raw AS INT)"
"""The second expression stands in the corrected file; the first fails for some records."""
UPSERT = """{key: [id], order: [place], delete_when: "op = 'D'", history: true}"""
DEDUP = "{key: [id], order: [place], mode: dedup}"

Row = dict[str, Any]

FIRST: Row = {"id": 9, "place": 1, "op": "U", "player": "Zoe", "score": 7, "raw": "3", "items": [8]}
FIRST |= {"wanted": True}


class _Killed(BaseException):
    """Ends a run or a replay: what is done up to here is on disk, nothing else happens."""


@dataclass(frozen=True, slots=True)
class Step:
    """Some records and a run over them, which may be killed at a moment of a batch."""

    records: tuple[Row, ...]
    batch_size: int
    killed_at: KillPoint | None
    corrected: bool
    """Whether the file is corrected before the run, and the dead letters are sent again."""


RECORDS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "place": st.integers(0, 9),
        "op": st.sampled_from("UUUD"),
        "player": st.sampled_from(["ada", "Ben", None]),
        "score": st.none() | st.integers(-9, 99),
        "raw": st.sampled_from(["1", "22", "much"]),
        "wanted": st.sampled_from([True, True, False]),
        "items": st.lists(st.integers(0, 5), max_size=3),
    }
)
STEPS = st.lists(
    st.builds(
        Step,
        records=st.lists(RECORDS, max_size=6).map(tuple),
        batch_size=st.integers(1, 7),
        killed_at=st.none() | st.sampled_from(list(KillPoint)),
        corrected=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


class Site:
    """A stream of records, its pipeline, and the rows that a list in Python would have."""

    def __init__(self, root: Path, *, keys: str) -> None:
        self.root, self.lake, self.keys = root, root / "lake", keys
        # all columns are there from the first batch on
        self.sent: list[Row] = [dict(FIRST)]
        self.corrected = False
        self.write(STRICT)

    def write(self, expression: str) -> None:
        explode = "" if self.keys else "explode: items,"
        (self.root / "games.yaml").write_text(
            f"""
name: games
source: {{type: kafka, topics: [games], bootstrap_servers: "localhost:1"}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}", bronze: bronze}}
lake: {{path: {self.lake}, checkpoint: {self.root}/checkpoints}}
shape:
  - {{where: wanted, set: {{number: "{expression}", player: "lower(player)"}}, {explode}
     drop: [raw, wanted], rename: {{score: points}}}}
keys: [{self.keys}]
aggregates:
  - {{tables: [silver_games], name: gold_players, group_by: [player], columns:
     {{rows: "count(*)", total: "sum(points)", best: "max(points)", worst: "min(points)",
       mean: "avg(points)", numbers: "sum(number)"}}}}
"""
        )

    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.root / "games.yaml")

    def run(self, batch_size: int) -> None:
        with self.pipeline().open(in_process(_no_spark)) as context:
            source = RecordSource([Record(r) for r in self.sent], ["games"], batch_size)
            StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)

    def replay(self) -> None:
        letters = dead_letters_of(self.pipeline())
        with self.pipeline().open(in_process(_no_spark), lane=LANE) as context:
            replay(context, letters, letters.select())

    def rows(self, table: str) -> list[Row]:
        path = self.lake / table
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
        return _sorted([{k: v for k, v in r.items() if not k.startswith("_")} for r in rows])

    def shaped(self) -> list[Row]:
        """Return the rows of all records that are no dead letters."""
        made = []
        for record in self.sent:
            if not record["wanted"] or (not self.corrected and record["raw"] == "much"):
                continue
            row = {k: v for k, v in record.items() if k not in ("raw", "wanted", "score", "items")}
            row["points"] = record["score"]
            row["number"] = None if record["raw"] == "much" else int(record["raw"])
            row["player"] = record["player"] and record["player"].lower()
            if self.keys:
                made.append(row | {"items": record["items"]})
            else:
                made += [row | {"items": item} for item in record["items"] or [None]]
        return made

    def expected(self) -> list[Row]:
        """Return the rows of the table."""
        rows = self.shaped()
        if not self.keys:
            return rows
        newest: dict[int, Row] = {}
        for row in rows:
            known = newest.get(row["id"])
            if known is not None and self.keys == DEDUP:
                better = row["place"] < known["place"]
            else:
                better = known is None or row["place"] >= known["place"]
            if better:
                newest[row["id"]] = row
        return [r for r in newest.values() if self.keys == DEDUP or r["op"] != "D"]

    def groups(self) -> list[Row]:
        """Return the groups of the table's rows."""
        rows, made = self.expected(), []
        for player in {row["player"] for row in rows}:
            mine = [row for row in rows if row["player"] == player]
            points = [row["points"] for row in mine if row["points"] is not None]
            numbers = [row["number"] for row in mine if row["number"] is not None]
            made.append(
                {
                    "player": player,
                    "rows": len(mine),
                    "total": sum(points) if points else None,
                    "best": max(points, default=None),
                    "worst": min(points, default=None),
                    "mean": sum(points) / len(points) if points else None,
                    "numbers": sum(numbers) if numbers else None,
                }
            )
        return made

    def counts(self) -> Counts:
        """Return the equation of all records."""
        filtered = sum(not record["wanted"] for record in self.sent)
        dead = 0
        if not self.corrected:
            dead = sum(r["wanted"] and r["raw"] == "much" for r in self.sent)
        read = len(self.sent)
        return Counts(read, read - filtered - dead, dead, filtered=filtered)

    def agrees(self) -> None:
        """Compare all tables with plain Python, and let `verify` compare as well."""
        pipeline = self.pipeline()
        ledger = pipeline.ledger()
        assert ledger.totals("games") == self.counts()
        assert self.rows("silver_games") == _sorted(self.expected())
        assert self.rows("gold_players") == _sorted(self.groups())
        log, history = self.rows("silver_games_log"), self.rows("silver_games_history")
        assert log == (_sorted(self.shaped()) if self.keys else [])
        assert history == (log if self.keys == UPSERT else [])
        known: dict[str, TableSummary] = {table.table: table for table in ledger.tables()}
        check = verify_aggregate(pipeline, known["gold_players"])
        assert check is not None
        assert check.agrees
        if self.keys:
            assert verify_table(pipeline, known["silver_games"]).verified.agrees
        tables = written_tables(str(self.lake), ledger.last_commits(), parked={}, files={})
        with coordinates(ledger, tables) as place:
            for table in tables:
                found = place.check(table, check_table(table))
                assert found.agrees, (found.table, found.findings)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


def _no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


@contextmanager
def killed(moment: KillPoint | None) -> Iterator[None]:
    """End what runs inside at the first time that it comes to a moment, if it does."""

    def die(now: object = None, *_: object) -> None:
        if now is moment:
            raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        for module in (batch, commits, merges):
            patch.setattr(module, "reached", die)
        try:
            yield
        except _Killed:
            pass


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param("", id="appended"),
        pytest.param(UPSERT, id="upsert"),
        pytest.param(DEDUP, id="dedup", marks=pytest.mark.slow),
    ],
)
@given(steps=STEPS)
# an example is some runs and replays: a fifth of what other properties take
@settings(max_examples=settings.default.max_examples // 5)
def test_tables_are_what_plain_python_says(
    keys: str, steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Site(tmp_path_factory.mktemp("site"), keys=keys)
    for step in steps:
        site.sent += step.records
        if step.corrected and not site.corrected:
            site.write(LENIENT)
            site.corrected = True
        with killed(step.killed_at):
            site.run(step.batch_size)
        # the next run goes on where the killed one was, in batches of another size
        site.run(step.batch_size + 1)
        if site.corrected:
            with killed(step.killed_at):
                site.replay()
            site.replay()
        site.agrees()
