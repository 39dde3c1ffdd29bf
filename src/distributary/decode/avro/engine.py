"""The fast decoder: a private copy of the schema, made so that `pyruhvro` gets it right.

`pyruhvro` 0.4 panics on bytes, fixed, decimals and some logical types, cuts ints of more than 32
bits, does not check UTF-8, and does not say whether bytes are left over. The private copy holds
nothing of that: it is made of numbers, strings, arrays, maps, unions and records that are the same
on the wire. Bytes are strings that are not looked at, a fixed is as many doubles and floats as fill
it, enums, dates and timestamps are longs, and branches of unions are records, so that two of them
may be alike. Every payload gets a seal behind it, which the copy reads as its last field: where it
comes out broken, the data ended somewhere else. Names are ours: none from outside reach the engine.

Nothing else imports `pyruhvro`. Where it is missing, no schema is supported, and the careful reader
decodes everything.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro.schema import Kind, Value
from distributary.decode.base import attempt

try:
    import pyruhvro
except ImportError:
    pyruhvro = None

MAX_BRANCHES = 100
"""Of a union: Arrow numbers them in seven bits, and the engine fills every branch in every row."""
MAX_FIXED = 64
"""Bytes of a fixed; the engine needs that much also for one that is null."""

_WIRE = {
    **dict.fromkeys((Kind.INT, Kind.LONG, Kind.ENUM, Kind.DATE, Kind.INSTANT), "long"),
    **dict.fromkeys((Kind.STRING, Kind.BYTES), "string"),
    Kind.BOOLEAN: "boolean",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
}
_SEAL_BYTES = 8
_NOTHING = pa.scalar(b"", pa.binary())


class Engine:
    """Decodes whole arrays of payloads."""

    def __init__(self, row: Value, *, listed: bool, branch: bool) -> None:
        writer = _PrivateSchema()
        content = writer.type(row)
        fields = [{"type": "array", "items": content} if listed else content, "double"]
        if branch:
            fields.insert(0, "long")
        self._schema = json.dumps(writer.record(fields))
        # a finite number, because nobody promises to keep the bits of others; a secret, because
        # a payload that knows it could end with it
        self._seal = secrets.token_bytes(_SEAL_BYTES - 1) + b"\x40"
        self._sealed = pa.scalar(self._seal, pa.binary())

    def decode(
        self, payloads: pa.BinaryArray
    ) -> tuple[list[pa.Array], npt.NDArray[np.bool_]] | None:
        """The branch numbers, if asked for, and the values; and which payloads ended in time."""
        sealed = pc.binary_join_element_wise(payloads, self._sealed, _NOTHING).to_pylist()
        batch = attempt(lambda: pyruhvro.deserialize_array(sealed, self._schema))
        if batch is None:
            return None
        *arrays, seals = batch.columns
        expected = np.frombuffer(self._seal, np.int64)[0]
        return arrays, seals.to_numpy().view(np.int64) == expected


def has_engine() -> bool:
    """Whether the package of the engine is there."""
    return pyruhvro is not None


def engine_supports(value: Value) -> bool:
    """Whether the private copy can hold a value."""
    match value.kind:
        case Kind.TEXT:
            return False
        case Kind.LIST | Kind.MAP if value.item is not None:
            # the engine would follow any number of items that take no bytes
            return engine_supports(value.item) and not value.item.weightless
        case Kind.STRUCT | Kind.EMPTY:
            # what takes no bytes is left out, and the engine has no records without fields
            carried = [m.value for m in value.members if not m.value.weightless]
            return bool(carried) and all(map(engine_supports, carried))
        case Kind.UNION:
            # a branch that takes no bytes would be null to the engine
            carried = [b.value for b in value.branches if b.value.kind is not Kind.NULL]
            weighty = not any(each.weightless for each in carried)
            few = len(value.branches) <= MAX_BRANCHES
            return few and weighty and all(map(engine_supports, carried))
    return value.size is None or (value.size <= MAX_FIXED and value.size % 4 == 0)


class _PrivateSchema:
    """Writes the private copy."""

    def __init__(self) -> None:
        self._records = 0

    def record(self, types: list[Any]) -> dict[str, Any]:
        self._records += 1
        fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
        return {"type": "record", "name": f"R{self._records}", "fields": fields}

    def type(self, value: Value) -> Any:
        if value.size is not None:
            doubles, floats = divmod(value.size // 4, 2)
            return self.record(["double"] * doubles + ["float"] * floats)
        match value.kind:
            case Kind.DECIMAL | Kind.DIGITS:
                return "string"
            case Kind.LIST if value.item is not None:
                return {"type": "array", "items": self.type(value.item)}
            case Kind.MAP if value.item is not None:
                return {"type": "map", "values": self.type(value.item)}
            case Kind.STRUCT | Kind.EMPTY:
                carried = [m.value for m in value.members if not m.value.weightless]
                return self.record([self.type(each) for each in carried])
            case Kind.UNION:
                return [self._branch(b.value, is_option(value)) for b in value.branches]
        return _WIRE[value.kind]

    def _branch(self, value: Value, option: bool) -> Any:
        if value.kind is Kind.NULL:
            return "null"
        return self.type(value) if option else self.record([self.type(value)])


def is_option(union: Value) -> bool:
    """Whether a union is null or one other thing, for which Arrow needs no union."""
    return len(union.branches) == 2 and any(b.value.kind is Kind.NULL for b in union.branches)
