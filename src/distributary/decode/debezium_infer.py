"""Events in JSON without a schema: with the one that was inferred from them.

The columns of a row are what either of its images has. A column that was never anything but null
does not exist yet: an event that has a value there says more than its schema, and is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.debezium_json import decoder
from distributary.decode.debezium_schema import OTHER, Field, Type, unusable
from distributary.decode.debezium_shape import is_told
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered
from distributary.decode.json_join import ANYTHING, NOTHING, Shape, join, objects_only
from distributary.errors import ErrorCode
from distributary.model.decoded import Decoded
from distributary.registry.json_documents import Documents

IMAGES = ("before", "after")
_TEXT: Shape = {"type": ["null", "string"]}
_TEXTS = frozenset(
    (
        *("version", "connector", "name", "db", "schema", "table", "collection", "gtid"),
        *("file", "change_lsn", "commit_lsn", "rs_id"),
    )
)
"""What a source tells as text, whatever it is about."""


class InferredJson:
    """Decodes payloads of one inferred schema."""

    def __init__(self, body: bytes, limits: DecodeLimits) -> None:
        try:
            content = Documents.of(body).content
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise unusable(type(error).__name__) from error
        members = _with_flat_rows(_properties(content))
        if not members:
            raise unusable("it has no properties")
        self._void = _void_paths(members)
        self.type = _type(members)
        inner = decoder(_closed({n: _filled(s) for n, s in members.items()}), limits)
        self._inner = inner
        self._schema = pa.schema([pa.field(c.name, c.type) for c in inner.columns])

    @property
    def raw(self) -> tuple[pa.DataType, ...]:
        """The types of the decoded fields, in the schema's order."""
        return tuple(self._schema.types)

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return self._inner.expansion

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; what cannot be read is in `failed`."""
        decoded = self._inner.decode(payloads)
        batch = decoded.ok
        full = np.zeros(batch.num_rows, np.bool_)
        for path in self._void:
            array = batch.column(path[0])
            for index in path[1:]:
                array = array.flatten()[index]
            if array.null_count < len(array):
                full |= array.is_valid().to_numpy(zero_copy_only=False)
        if not full.any():
            return decoded
        positions = (
            np.arange(len(payloads)) if decoded.origin is None else decoded.origin.to_numpy()
        )
        gathered = Gathered(self._schema, len(payloads))
        for failure in decoded.failed:
            gathered.fail(failure.index, failure.code, failure.message, at_byte=failure.position)
        for position in positions[full].tolist():
            reason = "it has a value where its schema knows none"
            gathered.fail(position, ErrorCode.PAYLOAD_MISMATCH, reason)
        gathered.add(batch.filter(pa.array(~full)), positions[~full])
        return gathered.decoded()


def _with_flat_rows(members: dict[str, Shape]) -> dict[str, Shape]:
    """A schema in which both images of a row are alike, and no column of it is an object."""
    images = [objects_only(members[name]) for name in IMAGES if name in members]
    source = objects_only(members.get("source", NOTHING))
    if "op" not in members or "connector" not in _properties(source) or not images:
        return {name: s if is_told(name) else _column(s) for name, s in members.items()}
    # an event that has something else there is no reason to read the others in another way
    told = {
        name: _TEXT if name in _TEXTS and "string" in shape.get("type", ()) else shape
        for name, shape in _properties(source).items()
    }
    members = members | {"source": _closed(told), "op": _TEXT}
    joined = NOTHING
    for each in images:
        joined = join(joined, each)
    columns = {name: _column(shape) for name, shape in _properties(joined).items()}
    return members | dict.fromkeys(IMAGES, _closed(columns) if columns else joined)


def _column(shape: Shape) -> Shape:
    """What the columns of an object are depends on more than its shape: it is JSON text."""
    types = shape.get("type")
    return ANYTHING if types == "object" or (types and "object" in types) else shape


def _properties(shape: Any) -> dict[str, Shape]:
    """The properties of what is an object or null, and nothing else."""
    types = shape.get("type") if isinstance(shape, dict) else None
    found = shape.get("properties") if isinstance(shape, dict) else None
    only = {*types} <= {"object", "null"} if isinstance(types, list) else types == "object"
    return dict(found) if only and isinstance(found, dict) else {}


def _closed(members: dict[str, Shape]) -> dict[str, Any]:
    return {"type": ["object", "null"], "properties": members, "additionalProperties": False}


def _filled(shape: Shape) -> Shape:
    """A shape in which nothing is only ever null: the fast decoder does not know such a thing."""
    if shape == NOTHING:
        return _TEXT
    members = _properties(shape)
    return _closed({n: _filled(s) for n, s in members.items()}) if members else shape


def _void_paths(members: dict[str, Shape]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for index, shape in enumerate(members.values()):
        if shape == NOTHING:
            found.append((index,))
        found += [(index, *path) for path in _void_paths(_properties(shape))]
    return found


def _type(members: dict[str, Shape]) -> Type:
    fields = []
    for name, shape in members.items():
        inner = _properties(shape)
        kind = _type(inner) if inner else Type("void") if shape == NOTHING else OTHER
        fields.append(Field(name, kind))
    return Type("struct", fields=tuple(fields))
