"""What a union becomes in the lake.

Null makes a value nullable and is no branch of its own. One other branch: its type. Numbers that
one type holds exactly: that type, long for int and long, double for int, float and double. Anything
else: a struct with one member per branch, of which one is set, called as the branch is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from distributary.decode.avro_shape import Branch, Kind, Value
from distributary.registry.avro_model import Type, short_name, type_name

_INTEGERS = {Kind.INT, Kind.LONG}
_REALS = {Kind.INT, Kind.FLOAT, Kind.DOUBLE}


def union_of(types: Sequence[Type], values: Sequence[Value]) -> Value:
    """The plan of a union from the plans of its branches."""
    names = _member_names([type_name(each) for each in types])
    branches = tuple(Branch(n, v) for n, v in zip(names, values, strict=True))
    real = [b for b in branches if not b.value.void]
    if len(real) <= 1:
        only = real[0].value if real else Value(Kind.NULL, pa.string())
        return Value(
            Kind.UNION, only.type, only.name, unit=only.unit, branches=branches, plain=True
        )
    joined = _joined([b.value for b in real])
    if joined is not None:
        return Value(Kind.UNION, joined, branches=branches, plain=True)
    members = [pa.field(b.member, b.value.type) for b in real]
    return Value(Kind.UNION, pa.struct(members), branches=branches)


def _joined(values: Sequence[Value]) -> pa.DataType | None:
    """The type that holds the numbers of all branches exactly, if there is one."""
    kinds = {value.kind for value in values}
    if any(value.unit for value in values):
        return None
    if kinds <= _INTEGERS:
        return pa.int64()
    return pa.float64() if kinds <= _REALS else None


def _member_names(names: Sequence[str]) -> list[str]:
    """Short names where these differ by more than case, full names elsewhere."""
    often = Counter(short_name(name).casefold() for name in names)
    given: list[str] = []
    for full in names:
        name = short_name(full)
        if often[name.casefold()] > 1:
            name = full.replace(".", "_")
        while name in given:
            name += "_"
        given.append(name)
    return given
