"""Whatever the order in which events come, a table is what the source had."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes import apply, merge_target
from distributary.changes.apply import compaction, merge_table
from distributary.changes.events import log_events
from distributary.changes.history import merge_history
from distributary.delta import log
from distributary.delta.compact import Sizes, compact
from distributary.delta.log import load
from distributary.model.table import Column
from distributary.store.base import at
from tests.changes.changes import (
    Batches,
    cut,
    deliveries,
    histories,
    moving_histories,
    rekeyed_histories,
    shuffled_in_batches,
)
from tests.changes.logs import COLUMNS, Shop, event, history_truth, truth


def merged(
    folder: Path,
    batches: Batches,
    *,
    deletes: str,
    file_bytes: int,
    deletes_as: str,
    columns: tuple[Column, ...] = COLUMNS,
    between: Callable[[Path], object] = lambda table: None,
) -> Shop:
    shop = Shop(folder, columns, settings={"deletes": deletes, "deletes_as": deletes_as})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "FILE_BYTES", file_bytes)
        patch.setattr(
            merge_target, "READ_WHOLE", 0 if file_bytes < merge_target.READ_WHOLE else 2**24
        )
        for batch in batches:
            merge_table(shop.order(batch))
            between(folder / "orders")
    return shop


DELETES = st.sampled_from(["hard", "soft"])
DELETES_AS = st.sampled_from(["rewrite", "vectors"])
FILE_BYTES = st.sampled_from([apply.FILE_BYTES, 300, 1200])
"""So that a few rows are a file, too."""
TEXTS = ("", "a", "b", "é", "\uffee", "\U0001f600", *("p" * 31 + end for end in "abc"), "z" * 70)


def no_statistics(table: Path) -> None:
    """Takes the statistics of every other file out of the newest commit."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in commits[-1].read_text().splitlines()] if commits else []
    for number, action in enumerate(lines):
        if "add" in action and number % 2:
            if "deletionVector" not in action["add"]:
                # the protocol asks for those of a file with a vector
                action["add"].pop("stats", None)
    if lines:
        commits[-1].write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    # as a process that has not seen these files
    log._followed.clear()


def compacted(table: Path) -> None:
    """Puts neighbours together, as maintenance does."""
    state = load(at(table))
    if state is not None:
        compact(state, compaction(state, Sizes(4000, 2)))


@given(
    data=st.data(),
    ids=st.sampled_from([range(40), [*range(12), None], TEXTS]),
    deletes=DELETES,
    deletes_as=DELETES_AS,
    file_bytes=st.sampled_from([300, 1200]),
    between=st.sampled_from([no_statistics, compacted, lambda table: None]),
)
@settings(max_examples=settings().max_examples // 2)
def test_many_files_are_merged_as_one_would_be(
    data: st.DataObject,
    ids: Sequence[Any],
    deletes: str,
    deletes_as: str,
    file_bytes: int,
    between: Callable[[Path], object],
) -> None:
    """Narrow bounds, wide ones and none: the rows are those of a table that is read whole."""
    first = [event(n - len(ids), "insert", id=id_, price=0.0) for n, id_ in enumerate(ids)]
    changes = data.draw(histories(left_out=True, most=30, ids=ids, truncates=False))
    batches = [first, *data.draw(shuffled_in_batches(changes))]
    columns = (Column("id", pa.string() if ids is TEXTS else pa.int64()), *COLUMNS[1:])
    told: dict[str, Any] = {"deletes": deletes, "deletes_as": deletes_as, "between": between}
    with tempfile.TemporaryDirectory() as folder:
        shop = merged(Path(folder), batches, columns=columns, file_bytes=file_bytes, **told)
        assert shop.rows() == truth(batches, columns, soft=deletes == "soft")


@given(
    batches=histories().flatmap(deliveries),
    deletes=DELETES,
    deletes_as=DELETES_AS,
    file_bytes=FILE_BYTES,
)
def test_any_delivery_gives_the_rows_of_the_source(
    batches: Batches, deletes: str, deletes_as: str, file_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"deletes": deletes, "deletes_as": deletes_as}
        shop = merged(Path(folder), batches, file_bytes=file_bytes, **told)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(
    # values move to another key only if batches and files come in the source's order
    batches=histories().flatmap(deliveries) | moving_histories().flatmap(cut),
    files=st.integers(2, 4),
)
def test_a_batch_in_parts_is_as_good_as_several(batches: Batches, files: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_events, "EVENT_BYTES", 1)
        shop = Shop(Path(folder))
        for batch in batches:
            order = shop.order(batch, files=files)
            merge_table(order)
            merge_history(replace(order, path=str(shop.folder / "orders_history")))
        assert shop.rows() == truth(batches, COLUMNS)
        assert shop.history() == history_truth(batches, COLUMNS)


@given(
    batches=histories(left_out=True).flatmap(shuffled_in_batches),
    deletes=DELETES,
    deletes_as=DELETES_AS,
    file_bytes=FILE_BYTES,
)
def test_columns_left_out_keep_the_value_before(
    batches: Batches, deletes: str, deletes_as: str, file_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"deletes": deletes, "deletes_as": deletes_as}
        shop = merged(Path(folder), batches, file_bytes=file_bytes, **told)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(
    batches=rekeyed_histories().flatmap(deliveries),
    deletes=DELETES,
    deletes_as=DELETES_AS,
    file_bytes=FILE_BYTES,
)
def test_a_key_may_be_defined_anew(
    batches: Batches, deletes: str, deletes_as: str, file_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"deletes": deletes, "deletes_as": deletes_as}
        shop = merged(Path(folder), batches, file_bytes=file_bytes, **told)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")


@given(
    batches=moving_histories().flatmap(shuffled_in_batches),
    deletes=DELETES,
    deletes_as=DELETES_AS,
    file_bytes=FILE_BYTES,
)
def test_values_move_with_their_row_to_another_key(
    batches: Batches, deletes: str, deletes_as: str, file_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"deletes": deletes, "deletes_as": deletes_as}
        shop = merged(Path(folder), batches, file_bytes=file_bytes, **told)
        assert shop.rows() == truth(batches, COLUMNS, soft=deletes == "soft")
