"""Which parts of an event are the row, and which tell about it: with an envelope, or flattened.

With an envelope the row is `after`, or `before` of a delete. Flattened, it is the event itself,
less the fields that begin with `__` and are called like something of an envelope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_schema import Field, Type, unusable

OPERATIONS = ("c", "u", "d", "r", "t", "m")
CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = range(6)
UNKNOWN = -1
Codes = npt.NDArray[np.int64]

_PREFIX = "__"
_TOLD = frozenset(
    (
        *("op", "deleted", "ts_ms", "ts_us", "ts_ns", "version", "connector", "name", "snapshot"),
        *("db", "schema", "table", "collection", "sequence", "txId", "lsn", "xmin", "server_id"),
        *("gtid", "file", "pos", "row", "thread", "query", "change_lsn", "commit_lsn", "scn"),
        *("event_serial_no", "commit_scn", "rs_id", "ssn", "redo_thread", "user_name", "ord"),
    )
)
_TOLD_PREFIXES = ("source_", "transaction_")


@dataclass(frozen=True, slots=True)
class Parts:
    """Events, taken apart; every array has one element for each."""

    codes: Codes
    """Numbers of OPERATIONS, or UNKNOWN."""
    row: tuple[pa.Array, ...]
    """The columns of the source's table, as they were decoded."""
    absent: Mask
    """Which events have no row where they should have one."""
    source: Mapping[str, pa.Array]
    """What they say about the place of the change: `lsn`, `table` and so on."""
    rest: tuple[tuple[str, pa.Array], ...]
    """Everything beside the row, for the envelope."""
    ordered: bool
    """Whether deletes tell their position as well, so that positions can be compared."""

    def only(self, kept: Mask) -> Parts:
        """Those that a mask selects."""
        mask = pa.array(kept)
        return Parts(
            self.codes[kept],
            tuple(array.filter(mask) for array in self.row),
            self.absent[kept],
            {name: array.filter(mask) for name, array in self.source.items()},
            tuple((name, array.filter(mask)) for name, array in self.rest),
            self.ordered,
        )


class Shape:
    """The parts of events of one schema."""

    def __init__(self, type_: Type, raw: Sequence[pa.DataType]) -> None:
        self._names = [field.name for field in type_.fields]
        self._place = {name: index for index, name in enumerate(self._names)}
        self.flat = not is_envelope(type_)
        if self.flat:
            self._row = [i for i, f in enumerate(type_.fields) if not is_told(f.name)]
            self.row: tuple[Field, ...] = tuple(type_.fields[i] for i in self._row)
            self.raw = tuple(raw[i] for i in self._row)
            if not self.row:
                raise unusable("a row of it would have no columns")
        else:
            image = self._image(type_, raw)
            self.row = type_.fields[image].type.fields
            self.raw = tuple(raw[image].field(i).type for i in range(len(self.row)))

    def _image(self, type_: Type, raw: Sequence[pa.DataType]) -> int:
        """Where the row is; both images are of one type."""
        found = [self._place[name] for name in ("after", "before") if name in self._place]
        # where nothing but truncates was seen, nothing is known of any row
        void = all(type_.fields[i].type.kind == "void" for i in found)
        same = {raw[i] for i in found}
        if not void and (len(same) != 1 or not pa.types.is_struct(raw[found[0]])):
            raise unusable("the images of the row are not alike, or have too many columns")
        return found[0]

    @property
    def tombstones_delete(self) -> bool:
        """Whether only a message without a value tells that a row is gone."""
        return self.flat and f"{_PREFIX}deleted" not in self._place

    def apart(self, batch: pa.RecordBatch) -> Parts:
        """Take decoded events apart."""
        return self._flattened(batch) if self.flat else self._enveloped(batch)

    def _enveloped(self, batch: pa.RecordBatch) -> Parts:
        columns = dict(zip(self._names, batch.columns, strict=True))
        codes = _codes(columns["op"])
        deletes = codes == DELETE
        before = columns.get("before")
        row = columns["after"] if "after" in columns else columns["before"]
        if deletes.any() and before is not None and row is not before:
            both = pa.concat_arrays([row, before])
            chosen = np.arange(len(codes)) + np.where(deletes, len(codes), 0)
            row = both.take(pa.array(chosen))
        absent = row.is_null().to_numpy(zero_copy_only=False) & ~np.isin(codes, (TRUNCATE, MESSAGE))
        rest = [(name, a) for name, a in columns.items() if name not in ("before", "after", "op")]
        if before is not None:
            # an image of the row as it was before an update; that of a delete is the row
            places = pa.array(np.arange(len(codes)), mask=deletes)
            rest.append(("before", before.take(places) if deletes.any() else before))
        columns_of_row = tuple(row.flatten()) if self.row else ()
        source = _members(columns["source"])
        return Parts(codes, columns_of_row, absent, source, tuple(rest), True)

    def _flattened(self, batch: pa.RecordBatch) -> Parts:
        columns = dict(zip(self._names, batch.columns, strict=True))
        told = {name: array for name, array in columns.items() if is_told(name)}
        gone = _truths(told.get(f"{_PREFIX}deleted"), batch.num_rows)
        operations = told.get(f"{_PREFIX}op")
        # without a word about it, a row is as it is from now on
        codes = np.full(batch.num_rows, UPDATE) if operations is None else _codes(operations)
        codes = np.where(gone, DELETE, codes)
        # what is said of the source goes before what the connector says of itself
        bare = {n.removeprefix(_PREFIX): a for n, a in told.items()}
        short = bare | {n.removeprefix("source_"): a for n, a in bare.items() if "source_" in n}
        return Parts(
            codes,
            tuple(batch.column(index) for index in self._row),
            np.zeros(batch.num_rows, np.bool_),
            short,
            tuple(told.items()),
            not self.tombstones_delete,
        )


def is_envelope(type_: Type) -> bool:
    """Whether events of a type have an envelope around the row."""
    source = type_.member("source")
    if source is None or type_.member("op") is None:
        return False
    images = type_.member("after") or type_.member("before")
    return images is not None and source.member("connector") is not None


def is_told(name: str) -> bool:
    """Whether a field of a flattened event comes from its envelope."""
    if not name.startswith(_PREFIX):
        return False
    word = name.removeprefix(_PREFIX)
    return word in _TOLD or word.startswith(_TOLD_PREFIXES)


def _codes(operations: pa.Array) -> Codes:
    if not pa.types.is_string(operations.type):
        return np.full(len(operations), UNKNOWN)
    found = pc.index_in(operations, value_set=pa.array(OPERATIONS, pa.string()))
    codes: Codes = found.fill_null(UNKNOWN).to_numpy().astype(np.int64)
    return codes


def _truths(array: pa.Array | None, count: int) -> Mask:
    if array is None:
        return np.zeros(count, np.bool_)
    texts = pc.utf8_lower(array.cast(pa.string()))
    truths: Mask = pc.equal(texts, "true").fill_null(False).to_numpy(zero_copy_only=False)
    return truths


def _members(source: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((f.name for f in source.type), source.flatten(), strict=True))
