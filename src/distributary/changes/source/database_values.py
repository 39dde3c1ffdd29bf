"""The values of a database as a lake has them, in the encoding that its events use.

A decoder keeps what an event says. Without a schema a decimal may be text or bytes in base64, and a
time a number of milliseconds or of microseconds: only its values show what a column holds. So each
pair of types has one encoding or several, and the one that agrees with most rows is used.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.checksum import equal_values
from distributary.changes.source.base import SourceColumn, ValueType

_EXACT = Context(prec=200_000)
Encode = Callable[[pa.ChunkedArray, pa.DataType], pa.Array | pa.ChunkedArray]
"""Turns values of a database into a type of the lake. Raises pa.ArrowInvalid or ValueError."""


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """A column that both sides have."""

    source: SourceColumn
    field: pa.Field
    """The lake's column."""
    encodings: tuple[Encode, ...]
    """The ways to write the source's values; the first is used unless another fits better."""

    def encode(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the source's values as the lake would have them; null where it cannot."""
        return _encoded(self.encodings[0], column, self.field.type)

    def normal(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert values of either side to one form, in which equal values are identical."""
        kind, type_ = self.source.type, column.type
        if pa.types.is_string(type_) and kind in (ValueType.JSON, ValueType.DECIMAL):
            normal = _normal_json if kind is ValueType.JSON else _normal_number
            texts = [None if text is None else normal(text) for text in column.to_pylist()]
            return pa.chunked_array([pa.array(texts, pa.string())])
        if pa.types.is_string(type_) and kind in _TEMPORAL:
            return _normal_times(column)
        if pa.types.is_integer(type_) and kind in _TEMPORAL:
            # the source's infinity counts as null
            low, high = _FINITE.get(kind, (-_FAR_US, _FAR_US))
            known = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
            return pc.if_else(known, column, pa.scalar(None, type_))
        return column

    def fitted(self, source: pa.ChunkedArray, lake: pa.ChunkedArray) -> ColumnPair:
        """Return the pair with the encoding that agrees with most of the lake's values."""
        if len(self.encodings) < 2:
            return self

        def agreement(encode: Encode) -> int:
            values = _encoded(encode, source, self.field.type)
            there = values.is_valid().to_numpy()
            same = equal_values(self.normal(values), self.normal(lake))
            # equal values may have several spellings: prefer that of the events
            alike = equal_values(values, lake)
            return 2 * int((same & there).sum()) + int((alike & there).sum())

        best = max(self.encodings, key=agreement)
        return ColumnPair(self.source, self.field, (best,))


def pair_of(source: SourceColumn, field: pa.Field) -> ColumnPair | None:
    """Pair a column of the database with one of the lake; None if they cannot be compared."""
    if source.type is ValueType.UNKNOWN:
        return None
    encodings = tuple(_encodings(source, field.type))
    return ColumnPair(source, field, encodings) if encodings else None


def _encoded(encode: Encode, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    try:
        return _chunked(encode(column, type_), type_)
    except (pa.ArrowException, ValueError, OverflowError):
        values = []
        for value in column:
            try:
                one = _chunked(encode(pa.chunked_array([pa.array([value])]), type_), type_)
                values.append(one[0].as_py())
            except (pa.ArrowException, ValueError, OverflowError):
                values.append(None)
        return pa.chunked_array([pa.array(values, type_)])


def _chunked(values: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    whole = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    return whole if whole.type == type_ else whole.cast(type_)


_TEMPORAL = (ValueType.DATE, ValueType.TIMESTAMP, ValueType.INSTANT, ValueType.TIME)
_FAR_US = 9_200_000_000_000_000_000
_FINITE = {ValueType.DATE: (-2_500_000, 2_200_000_000)}
"""Days between the first and the last date that PostgreSQL can store."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)


def _normal_json(text: str) -> str:
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    except ValueError:
        return text


def _normal_number(text: str) -> str:
    """Write a number without needless zeros, also a number of Debezium that carries its scale."""
    if text.startswith("{"):
        try:
            record = orjson.loads(text)
            unscaled = int.from_bytes(base64.b64decode(record["value"]), "big", signed=True)
            text = format(Decimal(unscaled).scaleb(-record["scale"], _EXACT), "f")
        except (ValueError, KeyError, TypeError):
            return text
    if not _NUMBER.fullmatch(text) or "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def _normal_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write times of day and moments in UTC without needless zeros and without a zone."""
    finite = pc.if_else(pc.ends_with(column, "infinity"), pa.scalar(None, pa.string()), column)
    pattern = r"^(.*:[0-9][0-9])(\.[0-9]*?[1-9])?\.?0*(?:Z|\+00:00)?$"
    return pc.replace_substring_regex(finite, pattern, r"\1\2")


# Encodings by the kind of the source's values and the class of the lake's type.


def _encodings(source: SourceColumn, type_: pa.DataType) -> Sequence[Encode]:
    of_class = _BY_TYPE.get(source.type, {}).get(_class(type_))
    return () if of_class is None else of_class(source)


def _class(type_: pa.DataType) -> str:
    tests = (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_floating, "floating"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_string, "string"),
        (pa.types.is_binary, "binary"),
        (pa.types.is_date, "date"),
        (pa.types.is_timestamp, "timestamp"),
        (pa.types.is_struct, "struct"),
    )
    return next((name for test, name in tests if test(type_)), "other")


def _one(encode: Encode) -> Callable[[SourceColumn], Sequence[Encode]]:
    return lambda _: (encode,)


def _cast(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return values.cast(type_)


def _texts(make: Callable[[Any], str]) -> Encode:
    def encode(values: pa.ChunkedArray, _: pa.DataType) -> pa.Array:
        return pa.array([None if v is None else make(v) for v in values.to_pylist()], pa.string())

    return encode


def _as_truth(values: pa.ChunkedArray, _: pa.DataType) -> pa.ChunkedArray:
    return pc.not_equal(values, 0)


def _shortest_float(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert floats of 32 bits to the doubles with the same shortest digits, such as 1.1."""
    return values.cast(pa.string()).cast(type_)


def _from_decimal(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return values.cast(pa.float64() if pa.types.is_floating(type_) else pa.decimal128(38, 0))


def _unscaled(source: SourceColumn) -> Encode:
    def encode(text: str) -> str:
        return _base64_number(Decimal(text), source.digits or 0)

    return _texts(encode)


def _base64_number(number: Decimal, scale: int) -> str:
    unscaled = int(number.scaleb(scale, _EXACT))
    length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()


def _scaled(text: str) -> dict[str, object]:
    """Return a number as Debezium writes one without a declared scale."""
    number = Decimal(_normal_number(text))
    exponent = number.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    return {"scale": scale, "value": _base64_number(number, scale)}


def _variable_scale(values: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    records = [None if text is None else _scaled(text) for text in values.to_pylist()]
    return pa.array(records, type_)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _little_endian(text: str) -> str:
    number = int(text, 2)
    return base64.b64encode(number.to_bytes(-(-number.bit_length() // 8), "little")).decode()


_UNITS = {"millis": (1, 1_000), "micros": (1, 1), "nanos": (1_000, 1)}
"""Factor and divisor that turn microseconds into a unit."""


def _unit(name: str) -> Encode:
    factor, divisor = _UNITS[name]

    def encode(values: pa.ChunkedArray, _: pa.DataType) -> pa.Array:
        micros = values if pa.types.is_integer(values.type) else values.cast(pa.int64())
        mask = micros.is_null().to_numpy()
        whole = micros.fill_null(0).to_numpy() // divisor * factor
        return pa.array(whole, mask=mask)

    return encode


def _units(source: SourceColumn) -> Sequence[Encode]:
    # Debezium by default chooses the unit by the digits of the column
    names = ["micros", "millis", "nanos"]
    if source.digits is not None and source.digits <= 3:
        names = ["millis", "micros", "nanos"]
    return [_unit(name) for name in names]


def _days(values: pa.ChunkedArray, _: pa.DataType) -> pa.ChunkedArray:
    return values.cast(pa.int32()).cast(pa.int64())


def _in_utc(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert times without a zone to times in UTC, as decoders do, and back."""
    if (values.type.tz is None) == (type_.tz is None):
        return values.cast(type_)
    return values.cast(pa.int64()).cast(pa.timestamp("us", type_.tz)).cast(type_)


def _iso(suffix: str, *, trimmed: bool = True) -> Encode:
    """Write moments as ISO 8601 does, with six digits of a second or as many as it takes."""

    def encode(values: pa.ChunkedArray, _: pa.DataType) -> pa.ChunkedArray:
        micros = values.cast(pa.int64()).cast(pa.timestamp("us"))
        # this writes microseconds, with six digits after the point
        texts = pc.strftime(micros, "%Y-%m-%dT%H:%M:%S")
        if trimmed:
            texts = pc.replace_substring_regex(texts, r"\.?0{1,6}$", "")
        return pc.binary_join_element_wise(texts, suffix, "")

    return encode


def _clock(*, trimmed: bool, suffix: str = "") -> Encode:
    def text(micros: int) -> str:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        after = f".{fraction:06}"
        if trimmed:
            after = after.rstrip("0").rstrip(".")
        sign = "-" if micros < 0 else ""
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{sign}{clock}{after}{suffix}"

    return _texts(text)


def _many(*encodings: Encode) -> Callable[[SourceColumn], Sequence[Encode]]:
    return lambda _: encodings


def _decimal_texts(source: SourceColumn) -> Sequence[Encode]:
    return [_cast, _unscaled(source), _texts(lambda text: orjson.dumps(_scaled(text)).decode())]


_BY_TYPE: Mapping[ValueType, Mapping[str, Callable[[SourceColumn], Sequence[Encode]]]] = {
    ValueType.INTEGER: {
        "integer": _one(_cast),
        "floating": _one(_cast),
        "decimal": _one(_cast),
        "string": _one(_cast),
        "boolean": _one(_as_truth),
    },
    ValueType.BOOLEAN: {
        "boolean": _one(_cast),
        "integer": _one(_cast),
        "string": _one(_cast),
    },
    ValueType.FLOAT: {"floating": _many(_shortest_float, _cast)},
    ValueType.DOUBLE: {"floating": _one(_cast)},
    ValueType.DECIMAL: {
        "decimal": _one(_cast),
        "floating": _one(_from_decimal),
        "integer": _one(_from_decimal),
        "string": _decimal_texts,
        "struct": _one(_variable_scale),
    },
    ValueType.TEXT: {"string": _one(_cast), "binary": _one(_cast)},
    ValueType.JSON: {"string": _one(_cast)},
    ValueType.BYTES: {
        "binary": _one(_cast),
        "string": _many(_texts(_base64), _texts(bytes.hex)),
    },
    ValueType.DATE: {
        "date": _one(_cast),
        "integer": _one(_days),
        "timestamp": _one(_cast),
        "string": _many(_cast, _texts(lambda day: f"{day.isoformat()}Z")),
    },
    ValueType.TIMESTAMP: {
        "timestamp": _one(_in_utc),
        "integer": _units,
        "string": _many(_iso("Z"), _iso("Z", trimmed=False), _iso("")),
    },
    ValueType.INSTANT: {
        "timestamp": _one(_in_utc),
        "integer": _units,
        "string": _many(_iso("Z"), _iso("Z", trimmed=False), _iso("+00:00")),
    },
    ValueType.TIME: {
        "integer": _units,
        "string": _many(
            _clock(trimmed=False),
            _clock(trimmed=True),
            _clock(trimmed=True, suffix="Z"),
        ),
    },
    ValueType.BITS: {
        "string": _many(_cast, _texts(_little_endian)),
        "boolean": _one(lambda values, _: pc.equal(values, "1")),
    },
    ValueType.OTHER: {"string": _one(_cast)},
}
