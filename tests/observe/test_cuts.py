"""Cuts: for each table the version that has exactly the batches up to one, whatever came since."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.lake import Maintain
from distributary.delta.log_reading import commit_name
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model.cut import CutTable
from distributary.observe import cuts as module
from distributary.observe.cut_views import views
from distributary.observe.cuts import Cuts
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from tests.lakes.settled import NOON, SettledLake


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    return SettledLake(tmp_path)


def batches_in(table: CutTable) -> list[int]:
    """The batches of the rows that a reader of this version sees."""
    rows = DeltaTable(table.path, version=table.version).to_pyarrow_table(columns=["_batch"])
    return sorted(set(rows["_batch"].to_pylist()))


def seen(lake: SettledLake, as_of: int | str | None = None) -> dict[str, list[int]]:
    cuts = Cuts(str(lake.lake))
    return {t.table: batches_in(t) for t in cuts.cut(cuts.find(as_of)).tables}


def compacted(lake: SettledLake) -> None:
    config = Maintain.model_validate({"optimize": {"min_files": 2}})
    wishes = Wishes(config, [UpkeepStep.OPTIMIZE])
    maintain(str(lake.lake), jobs_of(str(lake.lake)), wishes, whole_lake=False)


def test_each_table_has_the_batches_up_to_the_cut_and_no_other(games: SettledLake) -> None:
    games.batch({"chess": 2, "go": 1})
    games.batch({"chess": 1})
    games.batch({"go": 3})
    assert seen(games, 0) == {"bronze_events": [0], "silver_chess": [0], "silver_go": [0]}
    assert seen(games, "1") == {"bronze_events": [0, 1], "silver_chess": [0, 1], "silver_go": [0]}
    newest = {"bronze_events": [0, 1, 2], "silver_chess": [0, 1], "silver_go": [0, 2]}
    assert seen(games, "games:2") == seen(games) == newest


def test_a_batch_that_is_under_way_is_in_no_cut(games: SettledLake) -> None:
    games.batch({"chess": 1, "go": 1})
    games.batch({"chess": 1, "go": 1, "poker": 2}, settled=False)
    whole = {"bronze_events": [0], "silver_chess": [0], "silver_go": [0]}
    assert seen(games) == seen(games, 0) == whole


def test_compaction_and_commits_of_others_belong_to_the_newest_cut(games: SettledLake) -> None:
    for _ in range(3):
        games.batch({"chess": 1, "go": 1})
    compacted(games)
    path = str(games.lake / "silver_go")
    write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="append")
    games.batch({"chess": 1}, settled=False)
    cuts = Cuts(str(games.lake))
    versions = {t.table: t.version for t in cuts.cut(cuts.find()).tables}
    assert versions == {"bronze_events": 3, "silver_chess": 3, "silver_go": 4}
    assert {t.version for t in cuts.cut(cuts.find(2)).tables} == {2}
    assert seen(games)["silver_chess"] == [0, 1, 2]


def test_a_time_names_the_newest_batch_that_was_settled_by_then(
    games: SettledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # several steps of the search, without the hundreds of batches that it reads at a time
    monkeypatch.setattr(module, "_PROBE", 4)
    monkeypatch.setattr(module, "_WINDOWS", (4, 8, 16))
    for _ in range(15):
        games.batch({"chess": 1})
    cuts = Cuts(str(games.lake))
    for number in (0, 1, 3, 4, 9, 13, 14):
        moment = NOON + timedelta(minutes=number, seconds=30)
        assert cuts.find(moment).batches[0].batch == number
        text = (NOON + timedelta(minutes=number)).isoformat()
        assert cuts.find(text).batches[0].batch == number
        (bronze, chess) = cuts.cut(cuts.find(number)).tables
        assert (bronze.version, chess.version) == (number, number)
    with pytest.raises(ConfigError) as caught:
        cuts.find(NOON - timedelta(seconds=1))
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("wrong", ["yesterday", "-1", "games:", "41.5", ""])
def test_what_is_neither_a_batch_nor_a_time(games: SettledLake, wrong: str) -> None:
    games.batch({"chess": 1})
    with pytest.raises(ConfigError):
        Cuts(str(games.lake)).find(wrong)


def test_a_batch_that_there_is_not(games: SettledLake) -> None:
    games.batch({"chess": 1})
    with pytest.raises(ConfigError) as caught:
        Cuts(str(games.lake)).find(7)
    assert "batch of games is 0" in caught.value.evidence
    assert Cuts(str(games.lake / "nowhere")).cut(Cuts(str(games.lake / "no")).find()).tables == ()


def test_a_parked_table_is_behind_and_exact_again_when_it_was_resumed(games: SettledLake) -> None:
    games.batch({"chess": 1, "go": 1})
    games.batch({"chess": 1, "go": 1}, parked=["silver_go"])
    games.batch({"chess": 1, "go": 1}, parked=["silver_go"])
    cuts = Cuts(str(games.lake))
    behind = {t.table: t.behind for t in cuts.cut(cuts.find()).tables}
    assert behind == {"bronze_events": None, "silver_chess": None, "silver_go": 1}
    assert cuts.table(cuts.find(0), "silver_go").behind is None
    games.resume("silver_go")
    assert seen(games, 1)["silver_go"] == [0, 1]
    cuts = Cuts(str(games.lake))
    assert {t.behind for t in cuts.cut(cuts.find(1)).tables} == {None}


def test_replays_belong_to_the_cuts_after_them(games: SettledLake) -> None:
    games.batch({"chess": 1, "go": 1}, letters=2)
    games.replay("chess", [2, 3])
    games.batch({"go": 1})
    cuts = Cuts(str(games.lake))
    assert cuts.table(cuts.find(), "silver_chess").version == 1
    assert cuts.table(cuts.find(0), "silver_chess").version == 0


def test_another_life_counts_anew_and_an_older_one_stays_whole(tmp_path: Path) -> None:
    first = SettledLake(tmp_path, life="life1")
    first.batch({"chess": 1})
    first.batch({"chess": 1})
    second = SettledLake(tmp_path, life="life2", batches=5)
    second.batch({"chess": 1})
    second.batch({"chess": 1}, settled=False)
    cuts = Cuts(str(second.lake))
    assert [b.life for b in cuts.find().batches] == ["life2"]
    assert cuts.table(cuts.find(), "silver_chess").version == 2
    earlier = cuts.find(NOON + timedelta(minutes=1))
    assert (earlier.batches[0].life, earlier.batches[0].batch) == ("life1", 1)
    assert cuts.table(earlier, "silver_chess").version == 1


def test_two_pipelines_of_a_lake_are_joined_by_time(tmp_path: Path) -> None:
    games = SettledLake(tmp_path)
    shop = SettledLake(tmp_path, name="shop", bronze=False)
    for _ in range(4):
        games.batch({"chess": 1})
    shop.batch({"order": 1})
    shop.batch({"order": 1}, settled=False)
    cuts = Cuts(str(games.lake))
    point = cuts.find("games:2")
    assert {b.pipeline: b.batch for b in point.batches} == {"games": 2, "shop": 0}
    with pytest.raises(ConfigError) as caught:
        cuts.find(2)
    assert "games:2" in caught.value.next_step
    assert seen(games, "games:2")["silver_order"] == [0]


def test_what_the_ledger_has_summed_up_is_found_in_the_log(games: SettledLake) -> None:
    for _ in range(20):
        games.batch({"chess": 1, "go": 1})
    games.batch({"chess": 1})
    # go was written last in batch 19, chess in 20: rows of both are sums now
    games.ledger.expire(NOON + timedelta(minutes=19, seconds=30))
    games.batch({"chess": 1, "go": 1})
    cuts = Cuts(str(games.lake))
    assert cuts.table(cuts.find(20), "silver_chess").version == 20
    assert cuts.table(cuts.find(20), "silver_go").version == 19
    with pytest.raises(ConfigError):
        cuts.find(7)


def test_a_version_that_is_lost_is_named_with_the_oldest_cut_that_is_not(
    games: SettledLake,
) -> None:
    for _ in range(4):
        games.batch({"chess": 1})
    compacted(games)
    games.batch({"chess": 1})
    path = games.lake / "silver_chess"
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    cuts = Cuts(str(games.lake))
    point = cuts.find(2)
    with pytest.raises(DistributaryError) as caught:
        cuts.refuse_lost(point, cuts.table(point, "silver_chess"))
    error = caught.value
    assert error.code is ErrorCode.CUT_LOST
    assert "cut 2 can no longer be read: table silver_chess has lost version 2" in error.what
    assert "version 4 can be read; the oldest cut that can: 4" in error.evidence
    newest = cuts.find()
    cuts.refuse_lost(newest, cuts.table(newest, "silver_chess"))


def test_a_log_that_was_cleaned_up_is_named(games: SettledLake) -> None:
    for _ in range(6):
        games.batch({"chess": 1})
    path = games.lake / "silver_chess"
    DeltaTable(str(path)).create_checkpoint()
    for version in range(4):
        (path / commit_name(version)).unlink()
    cuts = Cuts(str(games.lake))
    point = cuts.find(3)
    with pytest.raises(DistributaryError) as caught:
        cuts.refuse_lost(point, cuts.table(point, "silver_chess"))
    assert "its log begins later; version 5 can be read" in caught.value.evidence


def test_a_table_that_was_made_again_is_found_by_its_marks(games: SettledLake) -> None:
    for _ in range(3):
        games.batch({"chess": 1})
    games.copy("silver_chess", "old")
    for name in (2, 1):
        (games.root / "old" / commit_name(name)).unlink()
    games.put_back("old", "silver_chess")
    cuts = Cuts(str(games.lake))
    # its newest version is older than the ledger's
    assert cuts.table(cuts.find(), "silver_chess").version == 0


def test_a_half_merged_batch_is_in_no_cut(games: SettledLake) -> None:
    games.batch({"chess": 1})
    cuts = Cuts(str(games.lake))
    commits = cuts._commits["silver_chess"]
    commits[0] = type(commits[0])(
        **{n: getattr(commits[0], n) for n in commits[0].__slots__} | {"role": "merged"}
    )
    log = games.lake / "silver_chess"
    for version, operation in ((1, "OPTIMIZE"), (2, "MERGE"), (3, "OPTIMIZE")):
        action = {"commitInfo": {"timestamp": 0, "operation": operation}}
        (log / commit_name(version)).write_text(json.dumps(action) + "\n")
    assert cuts.table(cuts.find(), "silver_chess").version == 1


def test_views_name_each_table_at_its_version(games: SettledLake) -> None:
    games.batch({"chess": 1})
    cuts = Cuts(str(games.lake))
    cut = cuts.cut(cuts.find())
    path = games.lake / "silver_chess"
    assert f"delta.`{path}` VERSION AS OF 0" in views(cut, "spark", schema="x")[1]
    assert f"delta_scan('{path}', version => 0)" in views(cut, "duckdb")[1]
    assert '"games"."silver_chess" FOR VERSION AS OF 0' in views(cut, "trino", schema="games")[1]
    document = json.loads(json.dumps(cut.as_dict()))
    assert document["tables"][1]["version"] == 0
    assert document["batches"][0]["batch"] == 0


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(
        st.one_of(
            st.sets(st.sampled_from(["a", "b", "c"]), min_size=1).map(sorted),
            st.just("optimize"),
            st.just("other"),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_cut_has_what_was_settled_up_to_it(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str | list[str]]
) -> None:
    lake = SettledLake(tmp_path_factory.mktemp("lake"), bronze=False)
    touched: list[list[str]] = []
    for step in steps:
        if isinstance(step, list):
            lake.batch(dict.fromkeys(step, 1))
            touched.append(step)
        elif step == "optimize" and touched:
            compacted(lake)
        elif touched:
            path = str(lake.lake / f"silver_{touched[0][0]}")
            none = DeltaTable(path).to_pyarrow_table().slice(0, 0)
            write_deltalake(path, pa.table(none), mode="append")
    for cut in range(len(touched)):
        expected: dict[str, list[int]] = {}
        for number, names in enumerate(touched[: cut + 1]):
            for name in names:
                expected.setdefault(f"silver_{name}", []).append(number)
        assert seen(lake, cut) == expected
    if touched:
        assert seen(lake) == expected
