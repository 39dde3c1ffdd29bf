import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode, PublishError
from distributary.stage.job import TaskPlanFile
from distributary.store.base import TransferError
from distributary.store.bucket import Bucket
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.stage.conftest import Bench, raw_batch, raw_records

MakeBench = Callable[..., Bench]


def games(bench: Bench, plan: GamesPlan) -> tuple[list[pa.RecordBatch], dict[str, int]]:
    raw: list[pa.RecordBatch] = []
    bad: dict[str, int] = {}
    position = 0
    for one in stream_rounds(plan, registry=bench.registry):
        batches = raw_records(one.arrow(), position)
        raw += batches
        position += sum(b.num_rows for b in batches)
        for code, count in one.sent().bad_by_code.items():
            bad[str(code)] = bad.get(str(code), 0) + count
    return raw, bad


def test_each_record_is_decoded_with_its_own_version(bench: MakeBench) -> None:
    one = bench()
    raw, _ = games(one, GamesPlan(games=3, versions=4, records=5))
    staged = one.stage(raw)
    assert staged.seen == 60
    assert not staged.dead
    for table, records in staged.records.items():
        assert records == 20
        rows = one.rows(staged, table).to_pylist()
        for row in rows:
            game = row["game_name"]
            version = one.registry.by_id(row["_schema_id"]).version_in(f"{game}-value")
            filled = [c for c in row if c.startswith("col_") and row[c] is not None]
            assert len(filled) == version


def test_unknown_keys_are_reported_and_nothing_is_written_for_them(bench: MakeBench) -> None:
    one = bench()
    raw, _ = games(one, GamesPlan(games=2, versions=1, records=3))
    staged = one.sorted(raw)
    unresolved = staged.unresolved(one.planner.task_plan())
    assert {u.key.claim for u in unresolved} == set(GamesPlan(games=2).names)
    assert not staged.files


def test_bad_records_have_the_code_they_were_made_for(bench: MakeBench) -> None:
    one = bench()
    raw, bad = games(one, GamesPlan(games=5, versions=2, records=20, bad=34))
    staged = one.stage(raw)
    assert dict(staged.dead) == bad
    assert sum(bad.values()) == 34
    assert sum(staged.records.values()) == 200 + 34


def test_a_dead_letter_keeps_the_whole_record(bench: MakeBench) -> None:
    one = bench()
    games(one, GamesPlan(games=1, versions=1, records=1))
    staged = one.stage([raw_batch([b"\xff\xff not a wrapper", None, b""], 40)])
    letters = one.rows(staged, "dead_letters").sort_by("offset").to_pylist()
    assert [x["error_code"] for x in letters] == ["NOT_AN_ENVELOPE", "NULL_VALUE", "EMPTY_VALUE"]
    assert [x["value"] for x in letters] == [b"\xff\xff not a wrapper", None, b""]
    assert letters[0]["key"] == b"k0"
    assert letters[0]["headers"] == [{"key": "h", "value": b"v"}]
    assert (letters[0]["topic"], letters[0]["partition"], letters[0]["offset"]) == (
        "wrapper",
        0,
        40,
    )
    assert letters[0]["status"] == "open"


def test_more_new_types_than_allowed_are_dead_letters(bench: MakeBench) -> None:
    one = bench(extra="evolution: {max_new_tables_per_batch: 2}")
    raw, _ = games(one, GamesPlan(games=5, versions=1, records=4))
    staged = one.stage(raw)
    assert staged.dead == {ErrorCode.TOO_MANY_TYPES: 12}
    # the next batch may create two more
    one.planner.begin_batch()
    again = one.stage(raw)
    assert again.dead == {ErrorCode.TOO_MANY_TYPES: 4}


def test_a_table_that_cannot_be_read_for_a_moment_is_no_new_type(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench(extra="evolution: {new_type: dead_letter}")
    raw, _ = games(one, GamesPlan(games=1, versions=1, records=4))
    read = one.publisher.current_columns

    def away(path: str) -> Any:
        if path.endswith("dead_letters"):
            return read(path)
        raise PublishError("it cannot be read", where=path)

    monkeypatch.setattr(one.publisher, "current_columns", away)
    assert one.stage(raw).dead == {}
    one.planner.begin_batch()
    monkeypatch.undo()
    # it was never there
    assert one.stage(raw).dead == {ErrorCode.NEW_TYPE_REFUSED: 4}
    one.planner.begin_batch()


def test_more_new_keys_than_a_task_may_report_are_dead_letters(bench: MakeBench) -> None:
    one = bench()
    raw, _ = games(one, GamesPlan(games=3, versions=1, records=2))
    staged = one.stage(raw, most_new_keys=1)
    assert staged.dead == {ErrorCode.TOO_MANY_TYPES: 4}
    assert sum(staged.records.values()) == 6


def test_what_one_task_refuses_and_another_reports_is_staged_once(bench: MakeBench) -> None:
    one = bench()
    both, _ = games(one, GamesPlan(games=2, versions=1, records=2))
    told = {
        u.key.claim for u in one.sorted(both, most_new_keys=1).unresolved(one.planner.task_plan())
    }
    (refused,) = set(GamesPlan(games=2).names) - told
    values = [v for batch in both for v in batch.column("value").to_pylist()]
    other = raw_batch([v for v in values if refused.encode() in v], 100)
    staged = one.stage(both, [other], most_new_keys=1)
    assert staged.dead == {ErrorCode.TOO_MANY_TYPES: 2}
    # two of either type, and the two letters
    assert (staged.seen, sum(staged.records.values())) == (6, 6)
    letters = one.rows(staged, "dead_letters")
    assert max(letters["offset"].to_pylist()) < 100


def test_bronze_holds_every_record_with_its_coordinates(bench: MakeBench) -> None:
    one = bench("{bronze: bronze_events, each: 'silver_{type}'}")
    raw, _ = games(one, GamesPlan(games=2, versions=2, records=5, bad=17))
    staged = one.stage(raw)
    bronze = one.rows(staged, "bronze_events")
    assert sorted(bronze["_offset"].to_pylist()) == list(range(37))
    types = [t for t in bronze["type"].to_pylist() if t is not None]
    assert types == sorted(types)
    values = {r["offset"]: r["value"] for batch in raw for r in batch.to_pylist()}
    unknown = [r for r in bronze.to_pylist() if r["type"] is None]
    assert unknown
    assert all(row["payload"] == values[row["_offset"]] for row in unknown)


def test_a_replay_adds_nothing_to_bronze(bench: MakeBench) -> None:
    one = bench("{bronze: bronze_events, each: 'silver_{type}'}")
    raw, _ = games(one, GamesPlan(games=1, versions=1, records=3))
    assert "bronze_events" not in one.stage(raw, lane="replay").records


def test_the_unified_table_has_shared_fields_as_columns_and_the_rest_as_json(
    bench: MakeBench,
) -> None:
    one = bench("{each: 'silver_{type}', unified: unified_gold}")
    raw, _ = games(one, GamesPlan(games=3, versions=2, records=4))
    staged = one.stage(raw)
    table = one.rows(staged, "unified_gold")
    assert table.num_rows == 24
    assert {"game_name", "user_name", "event_timestamp", "_rest", "_type"} <= set(
        table.schema.names
    )
    assert not [c for c in table.schema.names if c.startswith("col_")]
    assert all("col_" in rest for rest in table["_rest"].to_pylist())


def test_a_bronze_only_pipeline_decodes_nothing(bench: MakeBench) -> None:
    one = bench("{bronze: bronze_events}")
    raw, _ = games(one, GamesPlan(games=2, versions=1, records=3))
    bad = raw_batch([None, b"\xff"], 6)
    staged = one.stage([*raw, bad])
    assert dict(staged.records) == {"bronze_events": 6, "dead_letters": 2}


def test_statistics_name_rows_and_offsets(bench: MakeBench) -> None:
    one = bench()
    raw, _ = games(one, GamesPlan(games=1, versions=1, records=9))
    staged = one.stage(raw)
    (file,) = staged.files[next(iter(staged.files))]
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 9
    assert stats["minValues"]["_offset"] == 0
    assert stats["maxValues"]["_offset"] == 8
    assert stats["nullCount"]["_offset"] == 0


def test_guarded_decoding_gives_the_same_rows(bench: MakeBench) -> None:
    one = bench()
    raw, _ = games(one, GamesPlan(games=1, versions=1, records=5, bad=3))
    plain = one.stage(raw)
    guarded = one.stage(raw, guarded=True, attempt="guarded")
    table = next(t for t in plain.records if t.startswith("silver_"))
    assert one.rows(plain, table).equals(one.rows(guarded, table))
    assert plain.dead == guarded.dead


def test_a_plan_that_a_bucket_does_not_give_says_so_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Bucket, name: str) -> tuple[bytes, str]:
        raise PermissionError("an old token")

    monkeypatch.setattr(Bucket, "fetch", refuse)
    sent = TaskPlanFile("s3://lake/plan", "ab" * 32)
    with pytest.raises(TransferError, match=r"s3://lake/plan/(ab){32}: an old token"):
        _ = sent.value
