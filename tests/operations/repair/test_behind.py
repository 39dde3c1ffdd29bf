"""A run refuses to go on over tables that lack what was settled; a person may say it was meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow.fs import FileSelector

from distributary.config.load import load
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import Claim
from distributary.engine.progress.recovery import refuse_behind, spelled
from distributary.errors import ErrorCode, OwnedError, TableBehindError
from distributary.model.manifest import app_id
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import LastCommit
from distributary.observe.status.status import status
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations.repair.accept_table import accept, plan_acceptance
from distributary.publish.parking import Expected, Held, lacking
from distributary.store.base import at
from tests.lakes.settled import (
    BRONZE,
    LETTERS,
    NOON,
    UNIFIED,
    SettledLake,
    empty_newest,
)
from tests.services.shared import unique

CHESS, GO = "silver_chess", "silver_go"


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    lake = SettledLake(tmp_path)
    lake.batch({"chess": 10, "go": 5}, letters=2)
    lake.batch({"chess": 10})
    return lake


def refused(lake: SettledLake) -> str:
    """The tables that a run would name, or an empty text."""
    try:
        refuse_behind(lake.config, lake.ledger, lake.life)
    except TableBehindError as error:
        assert error.code is ErrorCode.TABLE_BEHIND
        assert error.evidence and error.next_step
        return error.context["tables"]
    return ""


def differs(lake: SettledLake, table: str) -> list[str]:
    tables = written_tables(str(lake.lake), lake.ledger.last_commits(), parked={}, files={})
    known = next(t for t in tables if t.table == table)
    return [finding.kind for finding in check_table(known).findings]


def take(lake: SettledLake, table: str) -> int:
    pipeline = Pipeline(load(lake.file))
    plan = plan_acceptance(pipeline, table)
    accept(pipeline, plan)
    return plan.difference


def test_nothing_is_wrong(games: SettledLake) -> None:
    assert refused(games) == ""


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_folder_that_is_gone(tmp_path: Path, format: str) -> None:
    games = SettledLake(tmp_path, format=format)
    games.batch({"chess": 10, "go": 5}, letters=2)
    assert refused(games) == ""
    shutil.rmtree(games.lake / GO)
    shutil.rmtree(games.lake / LETTERS)
    assert refused(games) == f"{LETTERS},{GO}"


def test_a_commit_that_was_emptied(games: SettledLake) -> None:
    empty_newest(games, CHESS)
    assert refused(games) == CHESS


def test_a_copy_of_yesterday(games: SettledLake) -> None:
    games.copy(CHESS, "yesterday")
    games.batch({"chess": 1})
    games.batch({"chess": 1})
    games.put_back("yesterday", CHESS)
    with pytest.raises(TableBehindError) as caught:
        refuse_behind(games.config, games.ledger, games.life)
    assert "batches 2 to 3" in caught.value.evidence


def test_a_log_that_was_cleaned_up_is_asked_as_a_whole(games: SettledLake) -> None:
    table = DeltaTable(games.lake / CHESS)
    table.optimize.compact()
    table = DeltaTable(games.lake / CHESS)
    table.create_checkpoint()
    for commit in games.commits(CHESS)[:-1]:
        commit.unlink()
    assert refused(games) == ""


def test_what_others_do_to_rows_is_not_behind(games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).delete()
    assert refused(games) == ""


def test_a_table_that_nobody_can_read_is_left_to_its_commit(games: SettledLake) -> None:
    games.commits(CHESS)[-1].write_text("garbage{")
    assert refused(games) == ""


def test_an_earlier_life_does_not_count(games: SettledLake) -> None:
    shutil.rmtree(games.lake / GO)
    games.life = "life2"
    assert refused(games) == ""


def test_a_table_that_the_file_no_longer_names(games: SettledLake) -> None:
    shutil.rmtree(games.lake / BRONZE)
    assert refused(games) == BRONZE
    games.file.write_text(games.file.read_text().replace(f", bronze: {BRONZE}", ""))
    assert refused(games) == ""


def test_what_is_parked_is_not_missed(games: SettledLake) -> None:
    games.batch({"chess": 3, "go": 4}, parked=[GO])
    assert refused(games) == ""
    games.resume(GO)
    assert refused(games) == ""
    empty_newest(games, GO)
    assert refused(games) == GO


def test_a_replay_counts_for_itself(games: SettledLake) -> None:
    games.copy(CHESS, "before")
    games.replay("chess", [15, 16])
    assert refused(games) == ""
    games.put_back("before", CHESS)
    assert refused(games) == CHESS


def test_a_ledger_whose_detail_has_expired(games: SettledLake) -> None:
    games.ledger.expire(NOON.replace(hour=13))
    assert refused(games) == ""
    empty_newest(games, CHESS)
    assert refused(games) == CHESS


@pytest.mark.parametrize("loss", ["folder", "commit", "rows"])
def test_a_table_that_is_taken_as_it_is(games: SettledLake, loss: str) -> None:
    if loss == "folder":
        shutil.rmtree(games.lake / CHESS)
    elif loss == "commit":
        empty_newest(games, CHESS)
    else:
        DeltaTable(games.lake / CHESS).delete("_offset < 5")
    before = {"folder": "missing", "commit": "behind", "rows": "foreign"}[loss]
    assert before in differs(games, CHESS)
    assert take(games, CHESS) == {"folder": -20, "commit": -10, "rows": -5}[loss]
    assert (refused(games), differs(games, CHESS)) == ("", [])
    # what comes after it is looked for again
    games.batch({"chess": 3})
    assert (refused(games), differs(games, CHESS)) == ("", [])
    games.ledger.expire(NOON.replace(year=2030))
    assert (refused(games), differs(games, CHESS)) == ("", [])
    empty_newest(games, CHESS)
    assert refused(games) == CHESS
    if loss == "folder":
        # nothing is left of its log but an empty file
        with pytest.raises(TableBehindError):
            take(games, CHESS)
        shutil.rmtree(games.lake / CHESS)
    assert take(games, CHESS) == -3
    assert (refused(games), differs(games, CHESS)) == ("", [])


def test_what_others_do_after_a_table_was_taken_is_told_apart(games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).delete("_offset < 5")
    take(games, CHESS)
    DeltaTable(games.lake / CHESS).delete("_offset < 7")
    assert differs(games, CHESS) == ["foreign"]


def test_a_batch_that_waits_to_be_settled_is_not_counted_twice(games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).delete("_offset < 5")
    manifest = games.batch({"chess": 4}, settled=False)
    assert take(games, CHESS) == -5
    games.settle(manifest)
    assert (refused(games), differs(games, CHESS)) == ("", [])


def test_a_shared_table_is_taken_for_all_who_write_to_it(tmp_path: Path) -> None:
    one = SettledLake(tmp_path, unified=True, bronze=False)
    two = SettledLake(tmp_path, name="others", unified=True, bronze=False)
    one.batch({"chess": 5})
    two.batch({"shogi": 7})
    shutil.rmtree(one.lake / UNIFIED)
    assert (refused(one), refused(two)) == (UNIFIED, UNIFIED)
    assert take(one, UNIFIED) == -12
    assert (refused(one), refused(two), differs(one, UNIFIED)) == ("", "", [])
    rows = {t.pipeline: t.rows for t in one.ledger.tables() if t.table == UNIFIED}
    assert rows == {"games": 0, "others": 0}


def test_nothing_is_taken_while_somebody_writes(games: SettledLake) -> None:
    shutil.rmtree(games.lake / CHESS)
    claim = Claim.take(at(games.checkpoint), lease=30)
    try:
        with pytest.raises(OwnedError):
            take(games, CHESS)
    finally:
        claim.release()
    assert refused(games) == CHESS


def test_status_says_that_a_table_is_missing_or_behind(games: SettledLake) -> None:
    def health() -> dict[str, str]:
        (pipeline,) = status(str(games.lake)).pipelines
        return {item.table.table: str(item.health) for item in pipeline.tables.shown}

    assert set(health().values()) == {"healthy"}
    shutil.rmtree(games.lake / GO)
    empty_newest(games, CHESS)
    assert (health()[GO], health()[CHESS], health()[BRONZE]) == ("missing", "behind", "healthy")
    take(games, GO)
    take(games, CHESS)
    # one that somebody agreed to lose is no loss, and is not there either
    assert {name: how for name, how in health().items() if how != "healthy"} == {GO: "absent"}


def test_batches_in_words() -> None:
    assert spelled([7]) == "batch 7"
    assert spelled([3, 5, 4]) == "batches 3 to 5"
    assert spelled([1, 3, 4, 9]) == "batches 1, 3 to 4 and 9"


def test_a_run_refuses_and_a_reset_of_the_table_lets_it_go_on(tmp_path: Path, tasks) -> None:
    from distributary_lab.simulate.game_records import GamesPlan
    from tests.lakes.games import Games

    games = Games(tmp_path, GamesPlan(games=2, records=60, versions=2, seed=7))
    games.send_round()
    games.pipeline().run(trigger="available_now", spark=tasks)
    table = games.tables()[0]
    shutil.rmtree(games.lake / table)
    games.send_round()
    with pytest.raises(TableBehindError) as caught:
        games.pipeline().run(trigger="available_now", spark=tasks)
    assert caught.value.context["tables"] == table
    pipeline = games.pipeline()
    accept(pipeline, plan_acceptance(pipeline, table))
    games.pipeline().run(trigger="available_now", spark=tasks)
    commits = games.pipeline().ledger().last_commits()
    assert {c.role for c in commits} >= {Role.BRONZE, Role.EACH, Role.UNIFIED}
    tables = written_tables(str(games.lake), commits, parked={}, files={})
    assert [t.table for t in tables if check_table(t).findings] == []


def test_tables_in_a_bucket(tmp_path: Path) -> None:
    from distributary.store.base import introduce
    from tests.source.s3_server import BUCKET, s3_server

    with s3_server() as server:
        address, options = f"s3://{BUCKET}/{unique('lake')}", server.options
        introduce(address, options)
        app = app_id("games", "life1")
        known = []
        for table in (CHESS, GO):
            path = f"{address}/{table}"
            for batch in range(2):
                marked = CommitProperties(app_transactions=[Transaction(app, batch)])
                rows = pa.table({"n": pa.array([1, 2], pa.int64())})
                write_deltalake(
                    path, rows, mode="append", storage_options=options, commit_properties=marked
                )
            known.append(Expected(path, app, batch=1, version=1))
            assert lacking(known[-1]) is None
        one = LastCommit(
            *("games", "life1", "stream", CHESS, "each", "chess", known[0].path),
            batch=1,
            version=1,
            accepted=None,
            accepted_version=None,
            since=NOON,
            records=4,
            written=4,
            rows=4,
        )
        (table,) = written_tables(address, [one], parked={}, files={})
        found = check_table(table)
        assert (found.findings, found.rows, found.files) == ((), 4, 2)
        inside = known[0].path.removeprefix("s3://")
        data = server.files.get_file_info(FileSelector(inside, recursive=True))
        server.files.delete_file(next(i.path for i in data if i.path.endswith(".parquet")))
        assert [f.kind for f in check_table(table).findings] == ["file_missing"]
        server.files.delete_file(f"{inside}/_delta_log/{1:020d}.json")
        assert lacking(known[0]) == Held(True, 0, 0)
        kinds = [f.kind for f in check_table(table).findings]
        assert set(kinds) >= {"behind", "rows"}
        server.files.delete_dir(known[1].path.removeprefix("s3://"))
        assert lacking(known[1]) == Held(False)


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.slow
def test_tables_that_spark_commits_to(tmp_path: Path, spark) -> None:
    from distributary_lab.simulate.game_records import GamesPlan
    from tests.lakes.games import Games

    tables = "{bronze: bronze_events, each: 'silver_{type}', publisher: spark}"
    games = Games(tmp_path, GamesPlan(games=2, records=20, versions=2, bad=3))
    for _ in range(2):
        games.send_round()
        games.pipeline(tables=tables).run(trigger="available_now", spark=spark)
    ledger = games.pipeline(tables=tables).ledger()
    known = written_tables(str(games.lake), ledger.last_commits(), parked={}, files={})
    with coordinates(ledger, known) as place:
        checks = [place.check(t, check_table(t)) for t in known]
    assert [c.table for c in checks if c.findings] == []
    assert all("rows" in c.compared for c in checks)
    DeltaTable(games.lake / BRONZE).restore(0)
    kinds = {t.table: [f.kind for f in check_table(t).findings] for t in known}
    assert kinds == {t.table: ["foreign"] if t.table == BRONZE else [] for t in known}
