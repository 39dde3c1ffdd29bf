"""How types are spelled for people, and which types hold the values of others."""

from __future__ import annotations

import hashlib
import re

import pyarrow as pa
from pyarrow import types as kinds

_SCALARS = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# decimal digits that hold every value; 20 for int64, as Delta asks for when it widens to decimal
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MAX_DECIMAL_DIGITS = 38


def sql_name(type_: pa.DataType) -> str:
    """The type as Spark and Delta spell it: `bigint`, `decimal(20,0)`, `struct<a: int>`."""
    known = _SCALARS.get(type_)
    if known is not None:
        return known
    if is_struct(type_):
        return f"struct<{', '.join(f'{_quoted(f.name)}: {sql_name(f.type)}' for f in type_)}>"
    if is_list(type_):
        return f"array<{sql_name(type_.value_type)}>"
    if is_map(type_):
        return f"map<{sql_name(type_.key_type)}, {sql_name(type_.item_type)}>"
    if kinds.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if kinds.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    return str(type_)


def _quoted(name: str) -> str:
    # quoted, so that no field name can imitate another type: sql_name also tells types apart
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def side_suffix(type_: pa.DataType) -> str:
    """What a side column's name ends with: `string`, `decimal_10_2`, `struct_3fa9c1`."""
    if is_list(type_) and not is_nested(type_.value_type):
        return f"array_{side_suffix(type_.value_type)}"
    if is_nested(type_):
        kind = "struct" if is_struct(type_) else "map" if is_map(type_) else "array"
        return f"{kind}_{hashlib.sha256(sql_name(type_).encode()).hexdigest()[:6]}"
    return re.sub(r"[^a-z0-9]+", "_", sql_name(type_).lower()).strip("_")


def same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a table cannot tell them apart: nullability and Arrow's item names do not count."""
    return one == other or sql_name(one) == sql_name(other)


def is_struct(type_: pa.DataType) -> bool:
    """A struct: its fields are merged one by one."""
    return bool(kinds.is_struct(type_))


def is_list(type_: pa.DataType) -> bool:
    """A list of any Arrow layout."""
    return bool(
        kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)
    )


def is_map(type_: pa.DataType) -> bool:
    """A map."""
    return bool(kinds.is_map(type_))


def is_nested(type_: pa.DataType) -> bool:
    """A type with types inside."""
    return is_struct(type_) or is_list(type_) or is_map(type_)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest scalar type that holds every value of both exactly; None when there is none."""
    if same(one, other):
        return one
    if kinds.is_integer(one) and kinds.is_integer(other):
        return _larger_integer(one, other)
    if kinds.is_floating(one) and kinds.is_floating(other):
        return pa.float64()
    if _is_float_pair(one, other):
        # a double has 53 exact bits: enough for an int, not for a bigint
        return None if pa.int64() in (one, other) else pa.float64()
    first, second = _decimal_digits(one), _decimal_digits(other)
    if first is None or second is None:
        return None
    whole, scale = max(first[0], second[0]), max(first[1], second[1])
    if whole + scale > _MAX_DECIMAL_DIGITS:
        return None
    return pa.decimal128(whole + scale, scale)


def _larger_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one not in _INTEGER_DIGITS or other not in _INTEGER_DIGITS:
        return None
    return max(one, other, key=_INTEGER_DIGITS.__getitem__)


def _is_float_pair(one: pa.DataType, other: pa.DataType) -> bool:
    return (one in _INTEGER_DIGITS and kinds.is_floating(other)) or (
        other in _INTEGER_DIGITS and kinds.is_floating(one)
    )


def _decimal_digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Digits before and after the point that hold every value of the type."""
    if kinds.is_decimal(type_) and type_.scale >= 0:
        return type_.precision - type_.scale, type_.scale
    digits = _INTEGER_DIGITS.get(type_)
    return None if digits is None else (digits, 0)
