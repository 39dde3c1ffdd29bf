"""Retention of rows: what goes, what stays, and what `verify` says afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.config.lake import Maintain
from distributary.observe.cards import read_upkeep_state
from distributary.observe.verify.checksums import check_files
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import TableCheck, check_table, written_tables
from distributary.operations import maintain as maintaining
from distributary.operations.maintain import (
    Report,
    UpkeepStep,
    Wishes,
    jobs_of,
    maintain,
    oldest_moment,
)
from tests.lakes.settled import BRONZE, NOON, UNIFIED, SettledLake

DAY = timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SettledLake:
    """Records 0 to 29, an hour after one another, in three batches."""
    found = SettledLake(tmp_path, unified=True, users=("ada", "bob", "cy"))
    for _ in range(3):
        found.batch({"chess": 6, "go": 3}, letters=1)
    monkeypatch.setattr(maintaining, "oldest_moment", lambda age, now: NOON + age)
    return found


def tidied(lake: SettledLake, *entries: dict[str, object], dry_run: bool = False) -> Report:
    settings = Maintain.model_validate({"retention": entries})
    wishes = Wishes(settings, [UpkeepStep.EXPIRE], dry_run=dry_run, pipeline="games")
    return maintain(str(lake.lake), jobs_of(str(lake.lake)), wishes)


def offsets(lake: SettledLake, table: str) -> list[int]:
    return sorted(DeltaTable(lake.lake / table).to_pyarrow_table()["_offset"].to_pylist())


def checks(lake: SettledLake) -> dict[str, TableCheck]:
    every = written_tables(str(lake.lake), lake.ledger.last_commits(), parked={}, files={})
    with coordinates(lake.ledger, every) as place:
        found = [place.check(t, check_files(t, check_table(t))) for t in every]
    return {check.table: check for check in found}


def assert_proven(lake: SettledLake, but: Sequence[str] = ()) -> None:
    for name, check in checks(lake).items():
        assert check.agrees or name in but, (name, check.findings)


def test_only_tables_of_the_patterns_lose_rows(lake: SettledLake) -> None:
    before = {name: offsets(lake, name) for name in ("silver_go", UNIFIED)}
    rule = {"tables": ["silver_ch*"], "age": "12h"}
    would = tidied(lake, rule, dry_run=True).totals()
    assert offsets(lake, "silver_chess") == [*range(6), *range(10, 16), *range(20, 26)]
    report = tidied(lake, rule)
    assert not report.failed and report.totals().rows_removed == would.rows_removed == 8
    assert would.row_bytes == report.totals().row_bytes > 0
    assert offsets(lake, "silver_chess") == [*range(12, 16), *range(20, 26)]
    assert before == {name: offsets(lake, name) for name in before}
    found = checks(lake)
    assert found["silver_chess"].rows_removed == 8
    assert_proven(lake)
    assert tidied(lake, rule).totals().rows_removed == 0


def test_bronze_goes_by_arrival_and_its_tables_are_still_proven(lake: SettledLake) -> None:
    report = tidied(lake, {"tables": [BRONZE], "age": "1h"})
    (done,) = (t.rows for t in report.tables if t.rows)
    assert (done.rows, done.whole_files, done.rewritten_files) == (10, 1, 0)
    assert offsets(lake, BRONZE) == list(range(10, 30))
    assert_proven(lake)
    lake.batch({"chess": 2})
    assert_proven(lake)


def test_more_rows_are_missing_than_were_removed(lake: SettledLake) -> None:
    """What somebody else takes out is still found, beside what retention has removed."""
    tidied(lake, {"tables": ["silver_chess"], "column": "_timestamp", "age": "12h"})
    DeltaTable(lake.lake / "silver_chess").delete("_offset = 20")
    found = checks(lake)["silver_chess"]
    assert {finding.kind for finding in found.findings} >= {"foreign"}
    for commit in lake.commits("silver_chess")[:-1]:
        assert commit.exists()
    # also when the log no longer says who it was
    DeltaTable(lake.lake / "silver_chess").create_checkpoint()
    for commit in lake.commits("silver_chess"):
        commit.unlink()
    found = checks(lake)["silver_chess"]
    assert {"rows", "lost"} <= {finding.kind for finding in found.findings}


def test_without_the_old_log_the_count_still_proves_it(lake: SettledLake) -> None:
    tidied(lake, {"tables": ["silver_*"], "age": "12h"})
    for table in ("silver_chess", "silver_go"):
        DeltaTable(lake.lake / table).create_checkpoint()
        for commit in lake.commits(table):
            commit.unlink()
    assert_proven(lake)


def test_every_row_may_go(lake: SettledLake) -> None:
    tidied(lake, {"tables": ["silver_*", UNIFIED, BRONZE], "age": "500h"})
    for table in ("silver_chess", "silver_go", UNIFIED, BRONZE):
        assert offsets(lake, table) == []
    assert_proven(lake)
    lake.batch({"chess": 2})
    assert offsets(lake, "silver_chess") == [30, 31]
    assert_proven(lake)


def test_dead_letters_and_missing_columns_are_refused_by_name(lake: SettledLake) -> None:
    report = tidied(lake, {"tables": ["*"], "column": "born", "age": "1h"})
    why = {t.table: t.skipped.get(UpkeepStep.EXPIRE, "") for t in report.tables}
    assert "born" in why["silver_chess"] and "born" in why[BRONZE]
    assert "maintain.expire" in why["dead_letters"]
    assert report.totals().rows_removed == 0 and not report.failed


def test_what_was_removed_last_is_remembered(lake: SettledLake) -> None:
    rule = {"tables": ["silver_*"], "age": "12h"}
    tidied(lake, rule)
    first = read_upkeep_state(str(lake.lake), "games")
    assert first is not None and first.rows_removed == 11 and first.rows_removed_at == first.at
    tidied(lake, rule)
    second = read_upkeep_state(str(lake.lake), "games")
    assert second is not None and second.at > first.at
    assert (second.rows_removed, second.rows_removed_at) == (11, first.at)


def test_ages_of_days_end_at_midnight() -> None:
    now = NOON + timedelta(minutes=7)
    assert oldest_moment(2 * DAY, now) == (NOON - 2 * DAY).replace(hour=0)
    assert oldest_moment(timedelta(hours=2), now) == now - timedelta(hours=2)
