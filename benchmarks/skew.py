"""Suite `merge-skew`: changes of some of a large table's rows, merged by us and by Spark's MERGE.

The table has fifty rows for each change of a batch, in the order of their ids, and both sides begin
with the same files. Of ten changes eight update, one inserts a new id, one deletes. They are spread
in three ways; `newest-large` are the changes of `newest`, to as many rows, at the end of a table
that is ten times as large. `even-vectors` and `few-vectors` name the rows that leave a file in
deletion vectors; of `few` there are a tenth of the changes, spread as those of `even`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.change_files import ROW
from benchmarks.clock import timed
from benchmarks.engine import bare_session
from benchmarks.order import Order, Pair, Row, Suite, summarised
from distributary.changes.apply import merge_table, written
from distributary.changes.events.log_events import PROPERTY, Span, to_text
from distributary.changes.merge_order import SEQ_COLUMN, TIME_COLUMN, DeletesAs, MergeOrder
from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import load
from distributary.model.change import SEQ
from distributary.model.manifest import app_id
from distributary.model.table import Column
from distributary.store.base import at

Ids = npt.NDArray[np.int64]
_Merging = Callable[[Path, Path, int], None]
"""Brings the table in a folder up to date with a file of changes, the batch of this number."""

_ROWS_PER_CHANGE = 50
_TIMES_LARGER = 10
_PIECE = 250_000
_START_MS = 1_700_000_000_000
_COLUMNS = tuple(Column(field.name, field.type) for field in ROW)
_APP = app_id("bench", "skew")


def _newest(rows: int, shares: npt.NDArray[np.float64]) -> Ids:
    """The newest tenth of the ids."""
    return (rows * (0.9 + shares / 10)).astype(np.int64)


def _even(rows: int, shares: npt.NDArray[np.float64]) -> Ids:
    """All ids alike."""
    return (rows * shares).astype(np.int64)


def _few(rows: int, shares: npt.NDArray[np.float64]) -> Ids:
    """All ids alike, a tenth of the changes."""
    return (rows * shares[::10]).astype(np.int64)


def _skewed(rows: int, shares: npt.NDArray[np.float64]) -> Ids:
    """Nine of ten changes in the newest hundredth of the ids, the others in the newest half."""
    old = shares < 0.1
    return np.where(old, rows * (0.5 + shares * 5), rows * (0.99 + (shares - 0.1) / 90)).astype(
        np.int64
    )


_SPREADS: dict[str, Callable[[int, npt.NDArray[np.float64]], Ids]] = {
    "newest": _newest,
    "even": _even,
    "skewed": _skewed,
    "few": _few,
}
_VS_SPARK = ("newest", "even", "skewed")


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """The table, ten times as many rows of it, and the changes of each batch."""
    rows = order.records * _ROWS_PER_CHANGE
    for name, times in (("table", 1), ("large", _TIMES_LARGER)):
        _write_table(order.root / name, rows * times)
        for spread in _SPREADS if times == 1 else ("newest",):
            for batch in range(order.all_batches):
                _write_changes(order, name, spread, batch, rows=rows, before=rows * (times - 1))
    yield order


def _write_table(path: Path, rows: int) -> None:
    pieces = (
        _row_values(np.arange(first, min(rows, first + _PIECE)), "first")
        .append_column("_seq", _places(-1, min(_PIECE, rows - first)))
        .append_column("_source_ts", _times(-1, min(_PIECE, rows - first)))
        for first in range(0, rows, _PIECE)
    )
    added = written(pieces, folder=str(path), key=("id",))
    fields = fields_of([*_COLUMNS, SEQ_COLUMN, TIME_COLUMN])
    keys = {PROPERTY: to_text((Span(("id",)),))}
    change = Change("WRITE", path.name, fields=fields, properties=keys, added=added)
    rewrite_files(str(path), None, change)


def _write_changes(
    order: Order, table: str, spread: str, batch: int, *, rows: int, before: int
) -> None:
    """A file as a log has it: changes of some rows, before which there are others."""
    size, generator = order.records, np.random.default_rng(batch)
    tenth = size // 10
    # each id once: a second change of it would only be left out by both sides
    shares = (np.arange(size - tenth) + generator.random(size - tenth) / 2) / (size - tenth)
    old = np.unique(_SPREADS[spread](rows, shares))
    fresh = rows + batch * tenth + np.arange(tenth)
    gone = np.zeros(len(old), np.bool_)
    # as many go as come; what an earlier batch has deleted may come again
    gone[generator.choice(len(old), min(tenth, len(old) // 9), replace=False)] = True
    ids = np.concatenate([fresh, old]) + before
    deleted = np.concatenate([np.zeros(tenth, np.bool_), gone])
    op = np.where(deleted, "delete", "update")
    op[:tenth] = "insert"
    count = len(ids)
    change = {
        "_op": pa.array(op.tolist()),
        "_deleted": pa.array(deleted),
        "_key": pa.array([["id"]] * count, pa.list_(pa.string())),
        "_seq": _places(batch, count),
        "_source_ts": _times(batch, count),
        "_hash": pa.array(np.arange(count)),
        "_unchanged": pa.array([[]] * count, pa.list_(pa.string())),
    }
    table_rows = _row_values(ids, f"change {batch}")
    for name, values in change.items():
        table_rows = table_rows.append_column(name, values)
    shuffled = table_rows.take(generator.permutation(count))
    path = _changes(order, table, spread, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(shuffled, path)


def _changes(order: Order, table: str, spread: str, batch: int) -> Path:
    return order.source / f"{table}-{spread}" / f"{batch}.parquet"


def _row_values(ids: Ids, note: str) -> pa.Table:
    texts = pa.array(ids).cast(pa.string())
    cities = pa.array(ids % 1000).cast(pa.string())
    return pa.table(
        [
            pa.array(ids),
            pc.binary_join_element_wise("name of", texts, " "),
            pc.binary_join_element_wise("city", cities, " "),
            pa.array(ids * 0.25),
            pa.array((ids % 100).astype(np.int32)),
            pa.repeat(pa.scalar(note), len(ids)),
        ],
        schema=ROW,
    )


def _places(batch: int, count: int) -> pa.StructArray:
    position = np.arange(count) + (batch + 1) * 10_000_000
    phase = pa.repeat(pa.scalar(int(batch >= 0), pa.int32()), count)
    nothing = pa.repeat(pa.scalar(0, pa.int64()), count)
    half, tie = pa.repeat(pa.scalar(1, pa.int32()), count), pa.repeat(pa.scalar(""), count)
    fields = [phase, nothing, nothing, pa.array(position), nothing, half, tie]
    return pa.StructArray.from_arrays(fields, fields=[*SEQ])


def _times(batch: int, count: int) -> pa.Array:
    moment = (_START_MS + (batch + 1) * 60_000) * 1000
    return pa.array(np.full(count, moment), pa.int64()).cast(pa.timestamp("us", "UTC"))


def _case(
    spread: str, merge: Callable[[Order], _Merging], *, table: str = "table"
) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """All batches, one after the other, into a copy of the table."""
        path = order.root / f"{table}-{spread}-{merge.__name__.strip('_')}"
        shutil.copytree(order.source / table, path)
        alive = np.ones(_count(path), np.bool_)
        merging = merge(order)
        batches = []
        for batch in range(order.all_batches):
            changes = _changes(order, table, spread, batch)
            before_it = _bytes_in(path)
            with timed(order.records) as figures:
                merging(path, changes, batch)
            batches.append({**figures, "file_bytes": _bytes_in(path) - before_it})
            alive = _after(alive, pq.read_table(changes, columns=["id", "_deleted"]))
        found, wanted = _count(path), int(alive.sum())
        if found != wanted:
            raise AssertionError(f"{found:,} rows instead of {wanted:,}")
        return summarised(batches, warm=order.warm)

    return case


def _after(alive: npt.NDArray[np.bool_], changes: pa.Table) -> npt.NDArray[np.bool_]:
    """Which ids are rows when these changes are made, each of another id."""
    ids = changes["id"].to_numpy()
    after = np.zeros(max(len(alive), int(ids.max()) + 1), np.bool_)
    after[: len(alive)] = alive
    after[ids] = ~changes["_deleted"].to_numpy()
    return after


def _bytes_in(path: Path) -> int:
    """Of all files: a merge takes none away."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _count(path: Path) -> int:
    state = load(at(path))
    return sum(file.rows or 0 for file in state.files.values()) if state else 0


def _vectors(order: Order) -> _Merging:
    return _ours(order, deletes_as="vectors")


def _ours(order: Order, deletes_as: DeletesAs = "rewrite") -> _Merging:
    def merging(path: Path, changes: Path, batch: int) -> None:
        merge_table(
            MergeOrder(
                table="large",
                path=str(path),
                tombstones=str(order.root / "tombstones" / path.name),
                files=(str(changes),),
                columns=_COLUMNS,
                app_id=_APP,
                batch=batch,
                now_us=_START_MS * 1000,
                deletes_as=deletes_as,
            )
        )

    return merging


def _spark(order: Order) -> _Merging:
    """One MERGE; the newest change of a key wins, deletes delete. It remembers no deletes."""
    spark: SparkSession = bare_session(order, name="merge")
    columns = [*ROW.names, "_seq", "_source_ts"]
    sets = ", ".join(f"t.{name} = s.{name}" for name in columns)

    def merging(path: Path, changes: Path, batch: int) -> None:
        del batch
        spark.read.parquet(str(changes)).createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO delta.`{path}` t USING (SELECT * FROM (SELECT *, row_number() OVER "
            f"(PARTITION BY id ORDER BY _seq DESC) AS _rank FROM changes) WHERE _rank = 1) s "
            f"ON t.id = s.id "
            f"WHEN MATCHED AND t._seq < s._seq AND s._deleted THEN DELETE "
            f"WHEN MATCHED AND t._seq < s._seq THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(f's.{name}' for name in columns)})"
        )

    return merging


def _growth(rows: Sequence[Row]) -> dict[str, float]:
    """How much longer the same changes take in the table that is ten times as large."""
    took = {row["case"]: row["seconds_per_batch"] for row in rows}
    if not {"newest", "newest-large"} <= set(took):
        return {}
    return {"merge_large_vs_table": round(took["newest-large"] / took["newest"], 2)}


SUITE = Suite(
    name="merge-skew",
    tables=(1,),
    prepared=prepared,
    cases={
        **{spread: _case(spread, _ours) for spread in _SPREADS},
        "newest-large": _case("newest", _ours, table="large"),
        **{f"{spread}-vectors": _case(spread, _vectors) for spread in ("even", "few")},
        **{f"{spread}-merge": _case(spread, _spark) for spread in _VS_SPARK},
    },
    pairs=(
        *(Pair(f"merge_{spread}_vs_spark", spread, f"{spread}-merge") for spread in _VS_SPARK),
        Pair("merge_even_vectors_vs_rewrite", "even-vectors", "even"),
        Pair("merge_few_vectors_vs_rewrite", "few-vectors", "few"),
    ),
    share=0.4,
    derived=_growth,
)
