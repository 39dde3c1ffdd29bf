"""A JSON Schema for change events in JSON that came without one.

The schema takes every event that it was inferred from, and `JsonDecoder` loses nothing of them with
it: objects are followed for two levels, an event and its parts, and what lies below is JSON text,
as is whatever has several types. Null is taken everywhere. Integers are `int64`, decimals where 64
bits are not enough, and text beyond 38 digits. A number of more digits than a double keeps is JSON
text, and so are integers of more than 53 bits beside numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.changes import claim
from distributary.decode.json_infer_arrow import arrow_shape, read_texts
from distributary.decode.json_join import NOTHING, Shape, join, shape_of
from distributary.decode.json_text import RefusedTextError, parse
from distributary.model.schema import Format, WriterSchema
from distributary.registry.json_schema import compile_json

__all__ = ["NOTHING", "Shape", "infer", "join", "names_of", "writer_schema"]

MAX_DEPTH = 100
_FEW = 32
"""When so few are left of texts that Arrow refuses, they are looked at one by one."""
_BYTES_AT_ONCE = 64 * 1024 * 1024
_MANY = 10_000
"""Objects in one text, beyond which it is looked at by itself."""
_PARTS = ("database", "schema", "table", "collection")
_NAMES = pa.struct([("source_metadata", pa.struct([(part, pa.string()) for part in _PARTS]))])


def infer(
    values: pa.BinaryArray | Sequence[bytes], *, parts: bool = False, careful: bool = False
) -> Shape | None:
    """The shape of JSON texts; None if nothing can be said about any of them.

    Texts that are not JSON say nothing, and nor do nulls. A record that has too many properties by
    itself, with `parts` in one of its parts, says nothing beside others. With `careful` each text
    is looked at by itself.
    """
    shape = alone = NOTHING
    waiting = _apart(_array(values))
    while waiting:
        part = waiting.pop()
        large = part.nbytes > _BYTES_AT_ONCE
        quick = arrow_shape(part) if len(part) > 1 and not large and not careful else None
        if quick is not None and not _is_too_wide(quick, parts=parts):
            shape = join(shape, quick)
        elif len(part) > (1 if large else _FEW):
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
        else:
            for value in _parsed(part):
                own = shape_of(value)
                if _is_too_wide(own, parts=parts):
                    alone = join(alone, own)
                else:
                    shape = join(shape, own)
    found = alone if shape == NOTHING else shape
    return None if found == NOTHING else found


def names_of(values: pa.BinaryArray | Sequence[bytes]) -> list[str | None]:
    """Which table each of Datastream's events belongs to, as `changes.claim` has it."""
    array = _array(values)
    claims: list[str | None] = []
    waiting = [array]
    while waiting:
        part = waiting.pop()
        large = part.nbytes > _BYTES_AT_ONCE
        read = read_texts(part, _NAMES) if len(part) > 1 and not large else None
        if read is not None:
            claims += _claims(read.flatten()[0])
        elif len(part) > (1 if large else _FEW):
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
        else:
            claims += [_claim(data) for data in part.to_pylist()]
    return claims


def writer_schema(shape: Shape, *, id: int = 0) -> WriterSchema:
    """A shape as the schema that a decoder is built from."""
    compiled = compile_json(json.dumps(shape))
    return WriterSchema(id, Format.JSON, compiled.body, compiled.message)


def _is_too_wide(shape: Shape, *, parts: bool) -> bool:
    return not shape or (parts and not all(shape.get("properties", {}).values()))


def _array(values: pa.BinaryArray | Sequence[bytes]) -> pa.BinaryArray:
    array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _apart(texts: pa.BinaryArray) -> list[pa.BinaryArray]:
    """Texts of many objects each by itself: Arrow gives every object the columns of all others."""
    long = pc.greater(pc.binary_length(texts), _MANY).to_numpy(zero_copy_only=False)
    many = [i for i in np.flatnonzero(long).tolist() if _objects(texts[i].as_py()) > _MANY]
    if not many:
        return [texts]
    usual = np.ones(len(texts), np.bool_)
    usual[many] = False
    return [texts.filter(pa.array(usual)), *(texts[i : i + 1] for i in many)]


def _objects(text: bytes) -> int:
    """At least as many as there are objects in a text, also where they are null."""
    return text.count(b"{") + text.count(b"null")


def _parsed(texts: pa.BinaryArray) -> Iterator[object]:
    for data in texts.to_pylist():
        try:
            yield parse(data, max_depth=MAX_DEPTH)
        except RefusedTextError:
            continue


def _claims(sources: pa.StructArray) -> list[str | None]:
    """Claims of events, each worked out once."""
    codes = np.zeros(len(sources), np.int64)
    for child in sources.flatten():
        coded = child.dictionary_encode(null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        # small again, however many different names there are
        codes = np.unique(codes, return_inverse=True)[1]
    _, rows, numbers = np.unique(codes, return_index=True, return_inverse=True)
    claims = [claim(sources[row].as_py() or {}) for row in rows.tolist()]
    return [claims[number] for number in numbers.tolist()]


def _claim(data: bytes) -> str | None:
    try:
        event = parse(data, max_depth=MAX_DEPTH)
    except RefusedTextError:
        return None
    source = event.get("source_metadata") if isinstance(event, dict) else None
    return claim(source) if isinstance(source, dict) else None
