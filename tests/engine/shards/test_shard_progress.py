"""Several jobs share the types of a pipeline, and their number changes while records come."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.shard import shard_of
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.seams import make_source
from distributary.engine.shards.progress import (
    Division,
    Epoch,
    StreamCuts,
    divide,
    family,
    has_letters,
    is_retired,
    refuse_replay,
)
from distributary.errors import ConfigError, DistributaryError, ErrorCode, SourceError
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.store.base import at
from tests.lakes.shard_jobs import SPARK, Jobs, shard_config

GAMES = [f"game_{number}" for number in range(12)]


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def test_each_record_is_taken_by_the_shard_of_its_type(jobs: Jobs) -> None:
    jobs.spread(3)
    jobs.land(*GAMES, None)
    jobs.land(*reversed(GAMES))
    jobs.run_all(0, 1, 2)
    jobs.assert_each_once()
    for job, name, _ in jobs.writers():
        assert job == f"games-shard-{0 if name is None else shard_of(name, 3)}"


def test_the_unified_job_takes_every_record_that_has_a_type(jobs: Jobs) -> None:
    jobs.spread(2)
    jobs.land(*GAMES, None)
    jobs.run_all(0, 1, "unified")
    jobs.spread(1)
    jobs.land(None, *GAMES)
    jobs.run_all(0, 1, "unified")
    typed = [offset for offset, name in enumerate(jobs.types) if name is not None]
    assert sorted(jobs.counted("games-unified").elements()) == typed


def test_nothing_runs_before_the_stream_is_divided(jobs: Jobs) -> None:
    jobs.land(*GAMES)
    assert jobs.step(0) is ErrorCode.SHARD_WAITING
    jobs.spread(2)
    # what was there before belongs to the job that has written it
    assert jobs.run(0) is False
    assert jobs.published == {}


def test_a_bronze_table_that_is_not_there_yet_is_an_empty_one(jobs: Jobs) -> None:
    jobs.spread(2)
    assert jobs.run(1) is False
    jobs.land(*GAMES)
    jobs.run_all(0, 1)
    jobs.assert_each_once()


def test_another_bronze_table_is_not_taken_for_the_one_that_was_read(jobs: Jobs) -> None:
    jobs.spread(2)
    jobs.land(*GAMES)
    jobs.land(*GAMES)
    source = make_source(shard_config(jobs.lake, 0))
    end = source.advance(source.first(), source.newest())
    assert end is not None
    jobs.spread(3)
    jobs.land(*GAMES)
    shutil.rmtree(jobs.lake / "bronze")
    for _ in range(4):
        jobs.land(*GAMES)
    config = shard_config(jobs.lake, 0)
    reading = config.source.model_copy(update={"on_replaced": "read"})
    for one in (source, make_source(config.model_copy(update={"source": reading}))):
        with pytest.raises(SourceError) as caught:
            one.advance(end, one.newest())
        assert caught.value.code is ErrorCode.SOURCE_REPLACED


def test_behind_a_cut_nobody_goes_on_before_all_have_come_to_it(jobs: Jobs) -> None:
    jobs.spread(2)
    jobs.land(*GAMES)
    jobs.spread(3)
    jobs.land(*GAMES)
    assert jobs.run(2) is ErrorCode.SHARD_WAITING
    assert jobs.run(0) is ErrorCode.SHARD_WAITING
    jobs.run(1)
    jobs.run_all(2, 1, 0)
    jobs.assert_each_once()
    jobs.assert_in_order()


def test_a_job_that_has_become_superfluous_ends_at_the_cut_and_may_come_back(jobs: Jobs) -> None:
    jobs.spread(3)
    jobs.land(*GAMES)
    jobs.spread(1)
    jobs.land(*GAMES)
    jobs.run_all(0, 1, 2)
    assert max(offset for job, _, offset in jobs.writers() if job == "games-shard-2") < len(GAMES)
    jobs.spread(4)
    jobs.land(*GAMES)
    jobs.run_all(0, 1, 2, 3)
    jobs.assert_each_once()


def test_a_batch_that_was_decided_before_a_cut_is_the_same_behind_it(jobs: Jobs) -> None:
    jobs.spread(2)
    jobs.land(*GAMES)
    jobs.step(1, crash=True)
    jobs.spread(3)
    jobs.land(*GAMES)
    assert jobs.run(0) is ErrorCode.SHARD_WAITING
    jobs.run_all(0, 1, 2)
    jobs.assert_each_once()


def test_parked_tables_hold_the_others_up(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.spread(2)
    jobs.land(*GAMES)
    jobs.run_all(0, 1)
    jobs.spread(1)
    jobs.land(*GAMES)
    waiting = {"games-shard-1"}

    def parked(folder: str) -> list[str]:
        return [name for name in waiting if f"/{name}/" in folder]

    monkeypatch.setattr("distributary.engine.shards.progress.parked", parked)
    assert jobs.run(0) is ErrorCode.SHARD_WAITING
    waiting.clear()
    jobs.run_all(0)
    jobs.assert_each_once()


def test_a_copy_of_a_checkpoint_that_was_put_back_cuts_batches_where_they_were(
    jobs: Jobs,
) -> None:
    jobs.spread(2)
    for _ in range(3):
        jobs.land(*GAMES)
    source = make_source(shard_config(jobs.lake, 0))
    start = source.first()
    while (end := source.advance(start, source.newest())) is not None:
        ranges = source.open(SPARK, start, end).ranges
        assert source.retrace(start, ranges) == end
        start = end


def test_what_is_ahead_is_shown_for_this_job_only(jobs: Jobs) -> None:
    jobs.spread(3)
    jobs.land(*GAMES, None)
    seen = []
    for part in range(3):
        source = make_source(shard_config(jobs.lake, part))
        for batch in source.peek(source.first()):
            seen += batch.column("offset").to_pylist()
    assert sorted(seen) == list(range(len(GAMES) + 1))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("land"), st.lists(st.sampled_from(GAMES), min_size=1, max_size=6)),
        st.tuples(st.just("land"), st.just(GAMES)),
        st.tuples(st.just("spread"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["step", "crash"]), st.integers(0, 3)),
    ),
    max_size=14,
)


@settings(max_examples=settings().max_examples // 2)
@given(actions)
def test_no_order_of_events_loses_or_doubles_a_record(events: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(Path(folder))
        jobs.spread(2)
        for what, value in events:
            match what:
                case "land":
                    jobs.land(*value)
                case "spread":
                    jobs.spread(value)
                case _:
                    jobs.step(value, crash=what == "crash")
        # the newest jobs first: they would overtake the others, if they could
        jobs.run_all(3, 2, 1, 0)
        jobs.assert_each_once()
        jobs.assert_in_order()


def test_cuts_are_made_once_and_completed_after_a_crash(tmp_path: Path) -> None:
    cuts = StreamCuts(at(tmp_path / "shards"))
    assert cuts.read() == Division()
    cuts.divide(2, lambda: 6)
    again = cuts.divide(2, lambda: 9)
    assert again.epochs == (Epoch(2, 7),)

    def dies() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cuts.divide(3, dies)
    assert cuts.read() == Division((Epoch(2, 7),), announced=3)
    found = cuts.divide(5, lambda: 11)
    assert found.epochs == (Epoch(2, 7, 12), Epoch(3, 12, 12), Epoch(5, 12))
    assert (found.shards, found.most) == (5, 5)


def test_while_a_cut_has_no_place_nobody_reads_on(jobs: Jobs) -> None:
    jobs.spread(2)
    jobs.land(*GAMES)
    StreamCuts.of(str(jobs.lake), "games").store.write("000001.json", b'{"shards": 3}')
    assert jobs.run(0) is False
    jobs.spread(3)
    jobs.run_all(0, 1, 2)
    jobs.assert_each_once()


def test_a_broken_cut_is_named(jobs: Jobs) -> None:
    jobs.spread(2)
    StreamCuts.of(str(jobs.lake), "games").store.write("000000.at.json", b"{")
    with pytest.raises(DistributaryError) as caught:
        make_source(shard_config(jobs.lake, 0)).first()
    assert caught.value.code is ErrorCode.CHECKPOINT_INVALID


def test_the_file_of_one_job_is_refused_once_the_types_are_spread(jobs: Jobs) -> None:
    alone = shard_config(jobs.lake, "bronze").model_copy(update={"shard": None})
    where = {"lake": str(jobs.lake), "parking": str(jobs.lake / "parked")}
    manifests = Manifests(at(jobs.lake / "none"))
    divide(alone, manifests=manifests, **where)
    jobs.spread(2)
    with pytest.raises(ConfigError):
        divide(alone, manifests=manifests, **where)


def test_what_one_job_alone_has_decided_it_must_finish_first(jobs: Jobs) -> None:
    folder = jobs.lake / "_checkpoints" / "games" / "manifests"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.json").write_text("{}")
    with pytest.raises(DistributaryError) as caught:
        jobs.spread(2)
    assert caught.value.code is ErrorCode.CHECKPOINT_INVALID
    (folder / "settled").write_text("0")
    jobs.spread(2)
    # later numbers need no such care: what is landed late is read late
    (folder / f"{1:020d}.json").write_text("{}")
    jobs.spread(3)
    assert StreamCuts.of(str(jobs.lake), "games").read().shards == 3


def test_a_shard_knows_the_types_of_those_it_may_take_over_from(jobs: Jobs) -> None:
    jobs.spread(3)
    jobs.spread(1)
    names = family(shard_config(jobs.lake, 0), lake=str(jobs.lake))
    assert set(names) == {"games", "games-shard-0", "games-shard-1", "games-shard-2"}
    assert family(shard_config(jobs.lake, "unified"), lake=str(jobs.lake)) == ("games-unified",)


def test_a_shard_may_go_when_it_has_nothing_left_to_do(jobs: Jobs) -> None:
    whole = shard_config(jobs.lake, "bronze").model_copy(update={"shard": None})
    assert not is_retired(whole, 1)
    jobs.spread(2)
    jobs.land(*GAMES)
    assert not is_retired(whole, 1)
    jobs.spread(1)
    assert not is_retired(whole, 1)
    jobs.run(0)
    jobs.run(1)
    assert is_retired(whole, 1)
    assert not is_retired(whole, 0)
    # nobody knows what is in a lake that is not to be seen
    assert not is_retired(shard_config(jobs.lake / "elsewhere", "bronze"), 1)


def test_the_file_of_a_job_stays_while_its_letters_are_open(jobs: Jobs) -> None:
    whole = shard_config(jobs.lake, "bronze")
    assert not has_letters(whole, 1)
    letter = {"pipeline": "games-shard-1", "status": "open", "id": "x"}
    rows = pa.Table.from_pylist([letter], DEAD_LETTER_SCHEMA)
    write_deltalake(str(jobs.lake / "dead_letters"), rows)
    assert has_letters(whole, 1)
    assert not has_letters(whole, 0)


def test_the_bronze_job_sends_no_letters_again(jobs: Jobs) -> None:
    refuse_replay(shard_config(jobs.lake, 0))
    with pytest.raises(ConfigError):
        refuse_replay(shard_config(jobs.lake, "bronze"))
