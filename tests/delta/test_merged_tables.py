"""Change data under compaction: logs, merged tables and histories say what they said before."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable
from hypothesis import given, settings

from distributary.changes.apply import merge_table
from distributary.changes.events.copies import redelivered
from distributary.changes.history import merge_history
from distributary.changes.rebuild import rebuild, verify
from distributary.config.sources.delta import DeltaSourceConfig as SourceConfig
from distributary.delta.compact import Sizes, compact
from distributary.delta.log import load
from distributary.delta.parquet import write_file
from distributary.engine.planning.table_book import log_files
from distributary.model.table import Column
from distributary.publish.direct import DirectPublisher
from distributary.source.delta.source import DeltaSource
from distributary.store.base import at
from tests.changes.changes import histories
from tests.changes.logs import COLUMNS, Event, Shop, event, history_truth, rows_of, truth
from tests.publish.staged import entry_of, mark

SIZES = Sizes(2**20, 2)
BATCHES = [
    [event(1, "insert", id=1, region="EU", price=1.0), event(2, "insert", id=2, price=2.0)],
    [event(3, id=1, region="US", price=3.0), event(4, "delete", id=2)],
    [event(5, "insert", id=3, price=5.0), event(6, "insert", id=4)],
    [event(7, id=3, price=7.0), event(3, id=1, region="late", price=0.0)],
    [event(8, "truncate"), event(9, "insert", id=9)],
]


def compacted(folder: Path) -> bool:
    state = load(at(folder))
    return state is not None and compact(state, SIZES)[1] is not None


def publish_log(folder: Path, batches: list[list[Event]]) -> str:
    """A log as a pipeline writes it, batch by batch."""
    path = folder / "orders_log"
    publisher = DirectPublisher()
    for number, batch in enumerate(batches):
        rows = rows_of(batch, COLUMNS, batch=number)
        file = write_file(rows, str(path), f"part-stream-{number:08d}-0-{'a' * 12}.parquet")
        columns = [Column(field.name, field.type) for field in rows.schema]
        publisher.publish(entry_of(path, [file], columns), mark(number))
    return str(path)


def test_merges_go_on_between_compactions(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for batch in BATCHES:
        merge_table(shop.order(batch))
        compacted(tmp_path / "orders")
    assert shop.rows() == truth(BATCHES, COLUMNS)


@settings(max_examples=settings().max_examples // 4)
@given(histories())
def test_histories_keep_their_closed_files_apart(events: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder))
        batches = [events[n : n + 2] for n in range(0, len(events), 2)]
        for batch in batches:
            order = shop.order(batch)
            merge_history(replace(order, path=str(Path(folder) / "orders_history")))
            compacted(Path(folder) / "orders_history")
        assert shop.history() == history_truth(batches, COLUMNS)


def test_tables_are_made_anew_from_a_compacted_log(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    orders = [shop.order(batch) for batch in BATCHES]
    for order in orders:
        merge_table(order)
    log = publish_log(tmp_path, BATCHES)
    assert compacted(Path(log))
    assert len(DeltaTable(log).file_uris()) == 1
    assert verify(log, orders[-1]).agrees
    rows = shop.rows()
    rebuild(log, orders[-1])
    assert shop.rows() == rows == truth(BATCHES, COLUMNS)


def test_events_that_come_again_are_found_in_a_compacted_log(tmp_path: Path) -> None:
    batches = [[replace(event(n, id=n), uuid=f"u{n}", hash=n)] for n in range(4)]
    log = publish_log(tmp_path, batches)
    again = rows_of([*batches[1], replace(event(9, id=9), uuid="new")], COLUMNS)
    assert redelivered(log, again).to_pylist() == [True, False]
    assert compacted(Path(log))
    assert redelivered(log, again).to_pylist() == [True, False]


def test_batch_of_a_compacted_log_is_found_by_its_bounds(tmp_path: Path) -> None:
    log = publish_log(tmp_path, BATCHES)
    assert len(log_files(log, 3)) == 1
    assert compacted(Path(log))
    (file,) = log_files(log, 3)
    assert file == log_files(log)[0]
    shop = Shop(tmp_path)
    for number, batch in enumerate(BATCHES):
        # as after a crash: each batch is merged from whatever file holds it
        merge_table(replace(shop.order(batch), files=tuple(log_files(log, number))))
    assert shop.rows() == truth(BATCHES, COLUMNS)


def test_pipeline_that_reads_a_table_does_not_notice(tmp_path: Path) -> None:
    """A source of rows in the order of commits, in the middle of a table that is compacted."""
    log = publish_log(tmp_path, BATCHES[:3])
    settings = {"type": "delta", "path": log, "value": "_envelope", "max_records_per_batch": 2}

    def source() -> DeltaSource:
        return DeltaSource(SourceConfig.model_validate(settings))

    start = {"version": 1, "index": 0, "rows": 2}
    known = source()
    first = known.advance(start, known.newest())
    assert first is not None
    assert compacted(Path(log))
    for reader in (known, source()):
        assert reader.advance(start, reader.newest()) == first
        end = reader.advance(first, reader.newest())
        assert end is not None and end["rows"] == 6
        assert reader.advance(end, reader.newest()) is None
