"""The fast decoder: Arrow's own JSON reader, for schemas that ask for nothing but types.

Arrow refuses an array when any value in it is of another type, has an unknown property or a name
twice. It does not say which, does not tell a missing property from one that is null, and takes
several values in a row for several rows. Every payload is therefore wrapped in an object of ours
with a seal behind it: rows and seals come out as they went in, or the answer is not used.
"""

from __future__ import annotations

import json
import re
import secrets

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from distributary.decode import json_moments as moments
from distributary.decode.json_shape import Kind, Value

Mask = npt.NDArray[np.bool_]
_MOST_NAMES = 200
_NOTHING = pa.scalar(b"", pa.binary())


class Engine:
    """Decodes whole arrays of payloads."""

    def __init__(self, row: Value, *, listed: bool, bare: bool) -> None:
        content = row.members[0].value if bare else row
        self._row = row
        self._bare = bare
        self._doubtful_null = _doubtful_null(_never_null(content))
        type_ = _reader_type(content)
        fields = [("v", pa.list_(type_) if listed else type_), ("s", pa.string())]
        self._parsing = arrow_json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="error"
        )
        # a secret, because a payload that knows it could end with it
        self._seal = secrets.token_hex(8)
        self._before = pa.scalar(b'{"v":', pa.binary())
        self._behind = pa.scalar(f',"s":"{self._seal}"}}\n'.encode(), pa.binary())

    def try_decode(self, payloads: pa.BinaryArray) -> pa.Array | None:
        """What the payloads hold, as Arrow reads it: one element each, or no answer at all."""
        wrapped = pc.binary_join_element_wise(self._before, payloads, self._behind, _NOTHING)
        _, offsets, data = wrapped.buffers()
        start, end = np.frombuffer(offsets, np.int32)[[0, len(wrapped)]].tolist()
        # in one block, because rows may have line breaks in them
        reading = arrow_json.ReadOptions(use_threads=False, block_size=end - start + 1)
        try:
            source = pa.BufferReader(data.slice(start, end - start))
            table = arrow_json.read_json(source, reading, self._parsing)
            table.validate(full=True)
        except MemoryError:
            # one of Arrow's own as well
            raise
        except pa.ArrowException:
            return None
        sealed = pc.all(pc.equal(table.column("s"), self._seal), skip_nulls=False).as_py()
        if table.num_rows != len(payloads) or not sealed:
            return None
        values: pa.Array = table.column("v").combine_chunks()
        return values

    def rows(self, values: pa.Array, doubtful: list[int]) -> pa.RecordBatch:
        """Values as the lake's columns; takes the positions of those that must be read again."""
        if self._bare:
            (member,) = self._row.members
            array = lake_array(values, member.value, doubtful)
            return pa.RecordBatch.from_arrays([array], schema=pa.schema(list(self._row.type)))
        doubtful.extend(np.flatnonzero(_nulls(values)).tolist())
        return pa.RecordBatch.from_struct_array(lake_array(values, self._row, doubtful))

    def with_doubtful_nulls(self, payloads: pa.BinaryArray) -> list[int]:
        """Which payloads may have a null where the schema takes none."""
        if not self._doubtful_null:
            return []
        null = pc.match_substring(payloads, "null")
        if not pc.any(null).as_py():
            return []
        return _where(pc.and_(null, pc.match_substring_regex(payloads, self._doubtful_null)))


def engine_supports(value: Value) -> bool:
    """Whether types, nulls and members are all that must be looked at."""
    if not value.plain or value.kind in (Kind.MAP, Kind.TEXT, Kind.DECIMAL, Kind.DIGITS):
        return False
    below = [m.value for m in value.members] + ([value.item] if value.item is not None else [])
    return all(map(engine_supports, below))


def lake_array(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    """Arrow's array as the plan wants it.

    Args:
        array: What Arrow read.
        value: The plan.
        doubtful: Takes the positions of elements that must not be used.
    """
    match value.kind:
        case Kind.INSTANT | Kind.DATE:
            read = moments.instants if value.kind is Kind.INSTANT else moments.dates
            made = read(array)
            doubtful.extend(np.flatnonzero(_nulls(made) & ~_nulls(array)).tolist())
            return made
        case Kind.NUMBER:
            finite = pc.is_finite(array).fill_null(True)
            doubtful.extend(_where(pc.invert(finite)))
            return array
        case Kind.STRING if value.allowed is not None:
            known = pc.is_in(array, pa.array([*value.allowed, None], pa.string()))
            doubtful.extend(_where(pc.invert(known)))
            return array
        case Kind.LIST if value.item is not None:
            return _list(array, value, value.item, doubtful)
        case Kind.STRUCT:
            return _struct(array, value, doubtful)
    return array


def _list(array: pa.ListArray, value: Value, item: Value, doubtful: list[int]) -> pa.Array:
    below: list[int] = []
    values = lake_array(array.values, item, below)
    if not item.nullable:
        below.extend(np.flatnonzero(_nulls(values)).tolist())
    doubtful.extend((np.searchsorted(array.offsets.to_numpy(), below, side="right") - 1).tolist())
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        value.type, len(array), buffers, array.null_count, array.offset, children=[values]
    )


def _struct(array: pa.StructArray, value: Value, doubtful: list[int]) -> pa.Array:
    missing = _nulls(array)
    children = []
    for index, member in enumerate(value.members):
        child = lake_array(array.field(index), member.value, doubtful)
        if member.required and child.null_count:
            doubtful.extend(np.flatnonzero(_nulls(child) & ~missing).tolist())
        children.append(child)
    mask = pa.array(missing) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(value.type), mask=mask)


def _nulls(array: pa.Array) -> Mask:
    nulls: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _where(flags: pa.BooleanArray) -> list[int]:
    return np.flatnonzero(flags.to_numpy(zero_copy_only=False)).tolist()


def _reader_type(value: Value) -> pa.DataType:
    match value.kind:
        case Kind.INSTANT | Kind.DATE:
            return pa.string()
        case Kind.LIST if value.item is not None:
            return pa.list_(_reader_type(value.item))
        case Kind.STRUCT:
            return pa.struct([(m.property, _reader_type(m.value)) for m in value.members])
    return value.type


def _never_null(value: Value) -> set[str]:
    """Properties that may be missing and may not be null: Arrow cannot tell the difference."""
    below = [m.value for m in value.members] + ([value.item] if value.item is not None else [])
    own = {m.property for m in value.members if not m.required and not m.value.nullable}
    return own.union(*map(_never_null, below))


def _doubtful_null(properties: set[str]) -> str:
    """An expression for texts in which one of the properties is null, or is not spelled plainly."""
    if not properties:
        return ""
    if len(properties) > _MOST_NAMES:
        return "null"
    names = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in properties)
    return rf"(?:{names})\s*:\s*null|\\[u/]"
