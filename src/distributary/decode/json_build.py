"""From parsed JSON values to the lake's columns, one record at a time into one list per column.

Values have been validated before: what is refused here is what the schema takes and its column
cannot hold. A record that is refused half-way is taken back whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from distributary.decode.json_leaves import adder_of, mismatch, storage_of
from distributary.decode.json_shape import Kind, Member, Value
from distributary.registry.hostile import printable


class Builder(Protocol):
    """Collects the values of one column."""

    @property
    def add(self) -> Callable[[Any], None]:
        """Takes the next value."""

    def cut(self, count: int) -> None:
        """Take back what was added beyond so many values."""

    def array(self) -> pa.Array:
        """All that was added, as a column; the builder begins anew."""


def builder_of(value: Value, label: str) -> Builder:
    """A builder for a value; the label is what failures call it."""
    match value.kind:
        case Kind.STRUCT:
            return StructBuilder(value, label)
        case Kind.LIST if value.item is not None:
            return _ListBuilder(value, value.item, label)
        case Kind.MAP if value.item is not None:
            return _MapBuilder(value, value.item, label)
    return _LeafBuilder(value, label)


class StructBuilder:
    """Objects; also the rows themselves."""

    def __init__(self, value: Value, label: str) -> None:
        self._type = value.type
        self._label = label
        self._count = 0
        self._nulls: list[int] = []
        self._children = [builder_of(m.value, _below(label, m)) for m in value.shown]
        names = [m.property for m in value.shown]
        self._adders = list(zip(names, [child.add for child in self._children], strict=True))

    def add(self, content: Any) -> None:
        """An object, or null."""
        if type(content) is dict:
            get = content.get
            for name, add in self._adders:
                add(get(name))
        elif content is None:
            self._nulls.append(self._count)
            for _, add in self._adders:
                add(None)
        else:
            raise mismatch(self._label, "an object")
        self._count += 1

    def add_row(self, content: Any) -> None:
        """An object as a row; null is a row of nulls."""
        self.add({} if content is None else content)

    def add_bare(self, content: Any) -> None:
        """The one member's value itself."""
        self._adders[0][1](content)
        self._count += 1

    def cut(self, count: int) -> None:
        """Take back what was added beyond so many objects."""
        for child in self._children:
            child.cut(count)
        self._nulls = [index for index in self._nulls if index < count]
        self._count = count

    def array(self) -> pa.StructArray:
        """All objects; the builder begins anew."""
        arrays = [child.array() for child in self._children]
        mask = None
        if self._nulls:
            flags = np.zeros(self._count, np.bool_)
            flags[self._nulls] = True
            mask = pa.array(flags)
        self._count, self._nulls = 0, []
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask)


class _ListBuilder:
    def __init__(self, value: Value, item: Value, label: str) -> None:
        self._type = value.type
        self._label = label
        self._offsets = [0]
        self._valid: list[bool] = []
        self._items = builder_of(item, f"{label}/*")

    def add(self, content: Any) -> None:
        end = self._offsets[-1]
        if type(content) is list:
            add = self._items.add
            for each in content:
                add(each)
            end += len(content)
        elif content is not None:
            raise mismatch(self._label, "an array")
        self._offsets.append(end)
        self._valid.append(content is not None)

    def cut(self, count: int) -> None:
        del self._offsets[count + 1 :], self._valid[count:]
        self._items.cut(self._offsets[-1])

    def array(self) -> pa.Array:
        offsets, valid, items = self._offsets, self._valid, self._items.array()
        self._offsets, self._valid = [0], []
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), items, type=self._type, mask=_mask(valid)
        )


class _MapBuilder:
    def __init__(self, value: Value, item: Value, label: str) -> None:
        self._type = value.type
        self._label = label
        self._offsets = [0]
        self._valid: list[bool] = []
        self._keys: list[str] = []
        self._items = builder_of(item, f"{label}/*")

    def add(self, content: Any) -> None:
        if type(content) is dict:
            add = self._items.add
            for each in content.values():
                add(each)
            self._keys.extend(content)
        elif content is not None:
            raise mismatch(self._label, "an object")
        self._offsets.append(len(self._keys))
        self._valid.append(content is not None)

    def cut(self, count: int) -> None:
        del self._offsets[count + 1 :], self._valid[count:]
        del self._keys[self._offsets[-1] :]
        self._items.cut(self._offsets[-1])

    def array(self) -> pa.Array:
        offsets, valid = self._offsets, self._valid
        keys, items = pa.array(self._keys, pa.string()), self._items.array()
        self._offsets, self._valid, self._keys = [0], [], []
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), keys, items, type=self._type, mask=_mask(valid)
        )


class _LeafBuilder:
    def __init__(self, value: Value, label: str) -> None:
        self._type = value.type
        self._storage = storage_of(value)
        self._values: list[Any] = []
        self.add = adder_of(value, self._values, label)

    def cut(self, count: int) -> None:
        del self._values[count:]

    def array(self) -> pa.Array:
        array = pa.array(self._values, self._storage)
        # emptied in place: `add` holds on to the list
        self._values.clear()
        return array if self._storage == self._type else array.cast(self._type)


def _below(label: str, member: Member) -> str:
    return f"{label}/{printable(member.property)}" if member.property else label


def _mask(valid: list[bool]) -> pa.Array | None:
    return None if all(valid) else pa.array([not each for each in valid])
