"""Cuts that stay: files and commits of pinned and of recent cuts outlive maintenance and merges."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.config.lake import Maintain
from distributary.delta.log import load
from distributary.delta.log_checkpoint import expired, write_checkpoint
from distributary.delta.removal.holds import KeptCuts, hold_of, read_holds, write_kept
from distributary.errors import CheckpointError, ConfigError, DistributaryError, ErrorCode
from distributary.observe.cuts import Cuts
from distributary.operations.maintain import Report, UpkeepStep, Wishes, jobs_of, maintain
from distributary.operations.pins import pin_cut, unpin_cut
from distributary.store.base import at
from tests.lakes.settled import SettledLake

LATER = datetime(2099, 1, 1, tzinfo=UTC)
TABLE = "silver_chess"


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    """Six batches of which the files of the first five were put together, long ago."""
    lake = SettledLake(tmp_path, bronze=False)
    for _ in range(5):
        lake.batch({"chess": 2})
    tidied(lake, UpkeepStep.OPTIMIZE, {"optimize": {"min_files": 2}})
    lake.batch({"chess": 2})
    return lake


def tidied(
    lake: SettledLake, step: UpkeepStep, settings: Mapping[str, Any] = {}, **wishes: Any
) -> Report:
    wishes = {"pipeline": lake.name, **wishes}
    chosen = Wishes(Maintain.model_validate(settings), [step], **wishes)
    return maintain(str(lake.lake), jobs_of(str(lake.lake)), chosen, whole_lake=False)


def vacuumed(lake: SettledLake, settings: Mapping[str, Any] = {}, **wishes: Any) -> int:
    """Delete whatever no cut holds, and return how many files that are."""
    # files as old as a clock may be wrong
    for path in (lake.lake / TABLE).glob("*.parquet"):
        os.utime(path, (time.time() - 9000, time.time() - 9000))
    report = tidied(lake, UpkeepStep.VACUUM, settings, retention=timedelta(0), force=True, **wishes)
    assert not report.failed
    return report.totals().files_deleted


def rows_at(lake: SettledLake, cut: int) -> int:
    cuts = Cuts(str(lake.lake))
    found = cuts.table(cuts.find(cut), TABLE)
    return DeltaTable(found.path, version=found.version).to_pyarrow_table().num_rows


def pinned(lake: SettledLake, cut: int, until: datetime = LATER) -> None:
    cuts = Cuts(str(lake.lake))
    pin_cut(cuts, cuts.find(cut), until)


def test_a_pinned_cut_outlives_a_vacuum_and_no_other_does(games: SettledLake) -> None:
    pinned(games, 2)
    assert vacuumed(games, dry_run=True) == 2
    # of five replaced files three are those of the cut
    assert vacuumed(games) == 2
    assert rows_at(games, 2) == 6
    cuts = Cuts(str(games.lake))
    assert list(cuts.pins) == ["games:2"]
    with pytest.raises(DistributaryError) as caught:
        pin_cut(cuts, cuts.find(3), LATER)
    assert caught.value.code is ErrorCode.CUT_LOST
    assert list(Cuts(str(games.lake)).pins) == ["games:2"]
    assert unpin_cut(cuts, cuts.find(2)) == "games:2"
    with pytest.raises(ConfigError):
        unpin_cut(Cuts(str(games.lake)), cuts.find(2))
    assert vacuumed(games) == 3


def test_a_pin_ends_by_itself(games: SettledLake) -> None:
    pinned(games, 2, datetime.now(UTC) - timedelta(seconds=1))
    assert read_holds(str(games.lake)).pins == ()
    assert vacuumed(games) == 5
    assert list((games.lake / "_distributary" / "cuts").iterdir()) == []


@pytest.mark.parametrize("settings", [{"age": "30d"}, {"last": 5}])
def test_recent_cuts_stay_as_the_settings_say(
    games: SettledLake, settings: Mapping[str, Any]
) -> None:
    # by the clock of the lake, its batches were settled days before they were committed
    assert vacuumed(games, {"cuts": settings}, dry_run=True) == 0
    assert vacuumed(games, {"cuts": settings}) == 0
    assert rows_at(games, 1) == 4
    assert read_holds(str(games.lake)).since < time.time()
    # a maintenance that does not know the file keeps what was kept
    assert vacuumed(games, pipeline=None) == 0
    # the setting is gone from the file
    assert vacuumed(games) == 5
    assert read_holds(str(games.lake)).since == float("inf")


def test_a_pinned_cut_outlives_the_care_for_a_log(games: SettledLake) -> None:
    pinned(games, 1)
    path = games.lake / TABLE
    old = time.time() - 90 * 86400
    for commit in games.commits(TABLE):
        os.utime(commit, (old, old))
    DeltaTable(str(path)).create_checkpoint()
    assert tidied(games, UpkeepStep.CHECKPOINT).totals().log_files == 0
    cuts = Cuts(str(games.lake))
    assert rows_at(games, 1) == 4
    unpin_cut(cuts, cuts.find(1))
    assert tidied(games, UpkeepStep.CHECKPOINT).totals().log_files > 0


def test_what_writers_tidy_up_themselves_is_held_too(games: SettledLake) -> None:
    path = games.lake / TABLE
    table = DeltaTable(str(path))
    table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    pinned(games, 0)
    state = load(at(str(path)))
    assert state is not None
    write_checkpoint(state, vacuum=True)
    assert rows_at(games, 0) == 2
    assert len(list(path.glob("*.parquet"))) == 3
    write_kept(str(games.lake), "games", KeptCuts(age=timedelta(days=1)))
    hold = hold_of(str(path))
    assert (hold.versions, hold.oldest()) == ({0}, 0)
    assert expired(state, keep_from=hold.oldest(), since=hold.since) == []


def test_a_damaged_document_stops_every_deletion(games: SettledLake) -> None:
    pinned(games, 2)
    (file,) = (games.lake / "_distributary" / "cuts").iterdir()
    file.write_bytes(file.read_bytes().replace(b"2099", b"2001"))
    with pytest.raises(CheckpointError):
        tidied(games, UpkeepStep.VACUUM)
    state = load(at(str(games.lake / TABLE)))
    assert state is not None
    before = sorted((games.lake / TABLE).glob("*.parquet"))
    write_checkpoint(state, vacuum=True)
    assert sorted((games.lake / TABLE).glob("*.parquet")) == before


def test_a_pin_knows_its_cut_when_the_ledger_has_summed_it_up(games: SettledLake) -> None:
    pinned(games, 2)
    games.ledger.expire(datetime(2027, 1, 1, tzinfo=UTC))
    assert rows_at(games, 2) == 6
    with pytest.raises(ConfigError):
        Cuts(str(games.lake)).find(3)
    # a lake that was moved
    games.lake.rename(games.root / "elsewhere")
    cuts = Cuts(str(games.root / "elsewhere"))
    assert cuts.table(cuts.find(2), TABLE).path == f"{games.root}/elsewhere/{TABLE}"
