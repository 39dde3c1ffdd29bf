"""Where is my record, and where did this row come from."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import Counts, SourceRange, StagedFile, TableEntry
from distributary.model.table import Role
from distributary.observe.cards import Registration, register
from distributary.observe.deadletters import DeadLetters
from distributary.observe.row_events import below, trace_file
from distributary.observe.trace import Coordinates, TraceVerdict, trace_offset, trace_row

HOSTILE = 'it\'s "<b>"; DROP TABLE x --\\ \u202e'


def entry(lake, name, offsets, *, role=Role.EACH, file=None, topic="wrapper"):
    """An entry whose file is really there, in its table or, if `file` is given, elsewhere."""
    name_of_file = file or lake.publish(name, offsets, topic=topic)
    staged = StagedFile(name_of_file, 1, len(offsets), "{}", {}, min(offsets), max(offsets), (1,))
    return TableEntry(lake.plan(name, role=role), (staged,), len(offsets))


@pytest.fixture
def traced(lake):
    """Batch 0: chess has the even offsets, go the odd ones, gold all; 8 and 9 are dead letters."""
    entries = [
        entry(lake, "chess", [0, 2, 4, 6]),
        entry(lake, "go", [1, 3, 5, 7]),
        entry(lake, "gold", range(8), role=Role.UNIFIED),
        lake.entry("dead", records=2, role=Role.DEAD_LETTERS),
    ]
    ranges = [SourceRange("wrapper", 0, 0, 10, 10)]
    manifest = lake.manifest(0, entries=entries, ranges=ranges, dead_letters={"BAD_MAGIC": 2})
    lake.settle(manifest)
    lake.dead_letters([{"offset": 8}, {"offset": 9, "error_code": HOSTILE, "note": HOSTILE}])
    return lake


def places(trace):
    return [(p.table, p.row, p.values["move"]) for p in trace.places]


def test_a_record_is_found_in_its_tables(traced):
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 4))
    assert trace.verdict is TraceVerdict.WRITTEN
    assert places(trace) == [("chess", 2, "move 4"), ("gold", 4, "move 4")]
    assert [p.file for p in trace.places] == ["part-1.parquet", "part-3.parquet"]
    assert [b.batch for b in trace.batches] == [0]
    assert trace.sentence() == "wrapper/0/4 is in chess, gold"
    assert json.loads(json.dumps(trace.as_dict()))["places"][0]["row"] == 2


def test_a_dead_letter_is_found_with_its_reason(traced):
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 9))
    assert (trace.verdict, trace.places) == (TraceVerdict.DEAD_LETTER, ())
    assert trace.dead_letters[0]["error_code"] == HOSTILE
    assert trace.dead_letters[0]["id"] in trace.sentence()
    assert json.dumps(trace.as_dict())


def test_a_dead_letter_in_bronze_is_still_a_dead_letter(traced):
    bronze = entry(traced, "bronze", [20, 21], role=Role.BRONZE)
    ranges = [SourceRange("wrapper", 0, 20, 22, 2)]
    counts = Counts(2, 0, 2)
    traced.settle(traced.manifest(1, entries=[bronze], ranges=ranges, counts=counts))
    traced.dead_letters([{"offset": 20, "batch": 1}])
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 20))
    assert trace.verdict is TraceVerdict.DEAD_LETTER
    assert [p.table for p in trace.places] == ["bronze"]


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        (("wrapper", 0, 10), TraceVerdict.NOT_READ),
        (("wrapper", 1, 3), TraceVerdict.UNKNOWN_SOURCE),
        ((HOSTILE, 0, 3), TraceVerdict.UNKNOWN_SOURCE),
    ],
)
def test_what_was_not_read_is_said(traced, source, verdict):
    trace = trace_offset(traced.path, Coordinates(*source))
    assert trace.verdict is verdict and trace.sentence()
    assert trace.read_to == (10 if verdict is TraceVerdict.NOT_READ else None)


def test_a_file_leads_to_its_dead_letters(traced):
    found = trace_file(traced.path, "wrapper")
    assert [letter["offset"] for letter in found.dead_letters] == [8, 9]
    assert trace_file(traced.path, "wrap").dead_letters == ()
    assert trace_file(traced.path, HOSTILE).tables == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/in/t/a.avro", "t/a.avro"),
        ("/data/in/deep/t/a.avro", "t/a.avro"),
        ("gs://b/x/t/a.avro", "t/a.avro"),
        ("/data/in/", ""),
        ("/data/inside/a.avro", "/data/inside/a.avro"),
        ("t/a.avro", "t/a.avro"),
    ],
)
def test_a_path_below_the_root_of_its_source(path, expected):
    assert below(["/data/in", "/data/in/deep/", "gs://b/x"], path) == expected


def test_an_offset_before_the_start_and_a_gap(lake):
    ranges = [SourceRange("wrapper", 0, 100, 110, 9)]
    lake.settle(lake.manifest(0, entries=[entry(lake, "chess", [100, 109])], ranges=ranges))
    assert (
        trace_offset(lake.path, Coordinates("wrapper", 0, 50)).verdict is TraceVerdict.BEFORE_START
    )
    assert trace_offset(lake.path, Coordinates("wrapper", 0, 105)).verdict is TraceVerdict.NOT_FOUND


def test_an_empty_lake_knows_nothing(lake):
    assert (
        trace_offset(lake.path, Coordinates("wrapper", 0, 1)).verdict is TraceVerdict.UNKNOWN_SOURCE
    )


@pytest.mark.parametrize("vacuum", [False, True], ids=["still on disk", "vacuumed"])
def test_a_record_is_found_after_compaction(traced, vacuum):
    traced.publish("chess", [100, 101])
    table = DeltaTable(f"{traced.path}/chess")
    table.optimize.compact()
    if vacuum:
        table.vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 4))
    chess = trace.places[0]
    assert (chess.table, chess.values["move"]) == ("chess", "move 4")
    assert chess.file != "part-1.parquet"
    stored = pq.read_table(f"{traced.path}/chess/{chess.file}")
    assert stored["_offset"][chess.row].as_py() == 4


def test_a_record_is_found_after_its_batch_expired(traced, noon):
    traced.settle(traced.manifest(1, entries=[entry(traced, "chess", [10, 11])]))
    traced.ledger.expire(noon.replace(year=2027))
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 4))
    assert places(trace) == [("chess", 2, "move 4"), ("gold", 4, "move 4")]


def test_a_row_that_a_merge_rewrote_is_found(traced):
    table = DeltaTable(f"{traced.path}/chess")
    table.update({"move": "'changed'"}, predicate="_offset = 4")
    (chess, _) = trace_offset(traced.path, Coordinates("wrapper", 0, 4)).places
    assert chess.values["move"] == "changed"
    (row,) = trace_row(traced.path, "chess", "move", "changed")
    assert row.source == Coordinates("wrapper", 0, 4)


def test_a_table_with_deletion_vectors_is_searched_too(lake):
    path = f"{lake.path}/chess"
    properties = {"delta.enableDeletionVectors": "true"}
    lake.publish("other", [5])
    schema = DeltaTable(f"{lake.path}/other").schema()
    DeltaTable.create(path, schema, configuration=properties)
    lake.settle(lake.manifest(0, entries=[entry(lake, "chess", [4, 5])]))
    (place,) = trace_offset(lake.path, Coordinates("wrapper", 0, 5)).places
    assert (place.table, place.file, place.values["move"]) == ("chess", None, "move 5")


def test_a_plain_folder_of_files_is_searched_too(lake):
    folder = Path(lake.path, "plain")
    lake.publish("model", [3, 4])
    folder.mkdir()
    Path(lake.path, "model", "part-1.parquet").rename(folder / "x.parquet")
    lake.settle(lake.manifest(0, entries=[entry(lake, "plain", [3, 4], file="x.parquet")]))
    (place,) = trace_offset(lake.path, Coordinates("wrapper", 0, 4)).places
    assert (place.table, place.row, place.values["move"]) == ("plain", 1, "move 4")


def test_a_parked_record_is_found_where_it_waits(lake):
    lake.publish("model", [3, 4])
    folder = f"{layout.parked(lake.path, 'games')}/chess/stream-000000000000-0123"
    Path(folder).mkdir(parents=True)
    Path(lake.path, "model", "part-1.parquet").rename(Path(folder, "x.parquet"))
    manifest = lake.manifest(0, entries=[entry(lake, "chess", [3, 4], file="x.parquet")])
    lake.settle(manifest, parked=["chess"])
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert trace.verdict is TraceVerdict.PARKED
    assert (trace.places[0].parked, trace.places[0].row) == (True, 1)
    assert trace.sentence() == "wrapper/0/4 waits in chess"


@pytest.fixture
def parked_elsewhere(lake, tmp_path, monkeypatch):
    """A lake as in a bucket: its parked batches are in the checkpoint, one row of offset 4."""
    monkeypatch.setattr(layout, "is_remote", lambda address: True)
    lake.publish("model", [3, 4])
    checkpoint = tmp_path / "checkpoint"
    folder = checkpoint / "parked" / "chess" / "stream-000000000000-0123"
    folder.mkdir(parents=True)
    Path(lake.path, "model", "part-1.parquet").rename(folder / "x.parquet")
    manifest = lake.manifest(0, entries=[entry(lake, "chess", [3, 4], file="x.parquet")])
    lake.settle(manifest, parked=["chess"])
    return lake, checkpoint


def test_a_parked_record_of_a_bucket_is_found_in_the_checkpoint(parked_elsewhere):
    lake, checkpoint = parked_elsewhere
    register(lake.path, Registration("games", "games.yaml", str(checkpoint)))
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert trace.verdict is TraceVerdict.PARKED
    (place,) = trace.places
    assert (place.parked, place.row, place.values["move"]) == (True, 1, "move 4")
    assert place.file is not None and Path(place.file).is_file()
    assert Path(place.file).is_relative_to(checkpoint)
    # the files are known, so a record that they lack is none of them
    assert trace_offset(lake.path, Coordinates("wrapper", 0, 5)).places == ()


def test_a_parked_record_of_a_bucket_without_a_card_is_still_parked(parked_elsewhere):
    lake, _ = parked_elsewhere
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert (trace.verdict, trace.places[0].file) == (TraceVerdict.PARKED, None)
    register(lake.path, Registration("games", "games.yaml", f"{lake.path}/gone"))
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert (trace.verdict, trace.places[0].file) == (TraceVerdict.PARKED, None)


def test_a_parked_record_whose_files_are_elsewhere_is_still_parked(lake):
    lake.settle(lake.manifest(0), parked=["chess"])
    Path(lake.path).mkdir(exist_ok=True)
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert (trace.verdict, trace.places[0].file) == (TraceVerdict.PARKED, None)


def test_a_resumed_record_is_written(lake):
    lake.publish("chess", [90])
    manifest = lake.manifest(0, entries=[entry(lake, "chess", [3, 4])])
    lake.settle(manifest, parked=["chess"])
    lake.resume(manifest, "chess")
    trace = trace_offset(lake.path, Coordinates("wrapper", 0, 4))
    assert trace.verdict is TraceVerdict.WRITTEN and len(trace.places) == 1


def test_a_replayed_dead_letter_is_found_in_its_table(traced):
    letters = DeadLetters(f"{traced.path}/dead")
    replayed = [entry(traced, "chess", [8])]
    traced.settle(
        traced.manifest(0, lane="replay", entries=replayed, ranges=[], counts=Counts(1, 1))
    )
    letters.mark_replayed(letters.select(offsets=8)["id"].to_pylist(), replay=0)
    trace = trace_offset(traced.path, Coordinates("wrapper", 0, 8))
    assert trace.verdict is TraceVerdict.WRITTEN
    assert [p.table for p in trace.places] == ["chess"]
    assert trace.dead_letters[0]["status"] == "replayed"


def test_topics_with_equal_offsets_are_kept_apart(lake):
    entries = [entry(lake, "chess", [1, 2], topic="a"), entry(lake, "go", [1, 2], topic="b")]
    ranges = [SourceRange("a", 0, 1, 3, 2), SourceRange("b", 0, 1, 3, 2)]
    lake.settle(lake.manifest(0, entries=entries, ranges=ranges))
    assert [p.table for p in trace_offset(lake.path, Coordinates("b", 0, 2)).places] == ["go"]


def test_a_row_leads_back_to_its_record(traced):
    (row,) = trace_row(traced.path, "chess", "move", "move 4")
    assert row.source == Coordinates("wrapper", 0, 4)
    assert row.values["move"] == "move 4"
    assert [r.source.offset for r in trace_row(traced.path, "gold", "_offset", "7")] == [7]
    assert len(trace_row(traced.path, "gold", "_partition", 0, limit=3)) == 3
    assert trace_row(traced.path, "chess", "move", HOSTILE) == ()


@pytest.mark.parametrize(
    ("table", "column", "value", "code"),
    [
        ("ches", "move", "x", ErrorCode.NOT_FOUND),
        ("../lake/chess", "move", "x", ErrorCode.NOT_FOUND),
        (HOSTILE, "move", "x", ErrorCode.NOT_FOUND),
        ("chess", "mov", "x", ErrorCode.NOT_FOUND),
        ("chess", "_offset", "not a number", ErrorCode.CONFIG_INVALID),
    ],
)
def test_questions_without_an_answer_have_a_code(traced, table, column, value, code):
    with pytest.raises(DistributaryError) as caught:
        trace_row(traced.path, table, column, value)
    assert caught.value.code is code


@given(st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_any_offset_of_an_unknown_source_has_an_answer(tmp_path_factory, offset, partition):
    trace = trace_offset(str(tmp_path_factory.getbasetemp()), Coordinates("t", partition, offset))
    assert trace.verdict is TraceVerdict.UNKNOWN_SOURCE
