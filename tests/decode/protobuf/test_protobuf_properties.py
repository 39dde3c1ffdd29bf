"""Random schemas and random messages: the decoder against the official runtime.

The reference below reads messages of the official runtime and knows nothing of the decoder. The
differences that are accepted, all of them in the lake's favour:

- text of proto2 that is not UTF-8 is accepted by the runtime and refused by the decoder, also where
  a later occurrence of the field replaces it;
- so is a timestamp or duration out of range, and what JSON text cannot hold;
- so is a field that does not come as a field of its type is written, which the runtime takes for an
  unknown one;
- a number that a closed enum does not know is absent for the runtime, and digits in the lake;
- a map entry with a field beside key and value is an entry in the lake, as in other languages; the
  Python runtime moves it to the unknown fields.
"""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor as FD
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.protobuf.decoder import decode_together
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from tests.decode.protobuf_samples import (
    LIMITS,
    Case,
    case,
    damaged,
    foreign,
    populate,
    schemas,
    submessages,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# the reference


class UnfitError(Exception):
    def __init__(self, code: ErrorCode) -> None:
        self.code = code


@dataclass
class Json:
    value: Any


@dataclass
class Closed:
    """What the runtime gives for a closed enum: numbers that it does not know are absent."""

    value: Any
    numbers: set[str]


@dataclass
class AtLeast:
    """A map of which the runtime does not show every entry."""

    entries: dict[Any, Any]


def expected(message: Any, pool: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    path = (*path, message.DESCRIPTOR.full_name)
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        content = getattr(message, field.name)
        value_field = field
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            key_field = field.message_type.fields_by_name["key"]
            row[field.name] = {
                convert(key_field, key, pool, path): convert(value_field, content[key], pool, path)
                for key in content
            }
            if any(unknown.field_number == field.number for unknown in UnknownFieldSet(message)):
                row[field.name] = AtLeast(row[field.name])
        elif field.is_repeated:
            row[field.name] = [convert(field, each, pool, path) for each in content]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = convert(field, content, pool, path)
        if value_field.enum_type is not None and value_field.enum_type.is_closed:
            known = {str(v.number) for v in value_field.enum_type.values}
            row[field.name] = Closed(row[field.name], known)
    return row


def convert(field: Any, content: Any, pool: Any, path: tuple[str, ...]) -> Any:
    if field.enum_type is not None:
        names = [v.name for v in field.enum_type.values if v.number == content]
        return names[0] if names else str(content)
    if field.message_type is not None:
        return convert_message(content, pool, path)
    if field.type == FD.TYPE_STRING and isinstance(content, bytes):
        raise UnfitError(ErrorCode.INVALID_UTF8)
    return Decimal(content) if field.cpp_type == FD.CPPTYPE_UINT64 else content


def convert_message(content: Any, pool: Any, path: tuple[str, ...]) -> Any:
    name = content.DESCRIPTOR.full_name
    match name.removeprefix("google.protobuf."):
        case "Timestamp" | "Duration" as kind:
            return micros(content, kind)
        case "FieldMask":
            return ",".join(content.paths)
        case "Any" | "Struct" | "Value" | "ListValue" | "Empty":
            return as_json(content, pool)
        case wrapper if wrapper.endswith("Value") and name.startswith("google."):
            return convert(content.DESCRIPTOR.fields[0], content.value, pool, path)
    if path.count(name) > LIMITS.recursion_depth:
        return as_json(content, pool)
    return expected(content, pool, path)


def micros(content: Any, kind: str) -> int:
    nanos = abs(content.nanos)
    low, high = (-62_135_596_800, 253_402_300_799)
    if kind == "Duration":
        low, high = (-315_576_000_000, 315_576_000_000)
    fits = low <= content.seconds <= high and nanos < 10**9
    if not fits or (kind == "Timestamp" and content.nanos < 0):
        raise UnfitError(ErrorCode.VALUE_OUT_OF_RANGE)
    return int(content.seconds * 10**6 + (nanos // 1000) * (-1 if content.nanos < 0 else 1))


def as_json(content: Any, pool: Any) -> Json:
    try:
        return Json(
            json_format.MessageToDict(
                content, preserving_proto_field_name=True, descriptor_pool=pool
            )
        )
    except (TypeError, ParseError):
        # an Any that the runtime cannot unpack: a test of its own says what the text is then
        if clear_any(content):
            as_json(content, pool)
        return Json(...)
    except UnicodeDecodeError as error:
        raise UnfitError(ErrorCode.INVALID_UTF8) from error
    except (json_format.SerializeToJsonError, ValueError) as error:
        text = isinstance(error.__cause__, UnicodeDecodeError)
        code = ErrorCode.INVALID_UTF8 if text else ErrorCode.VALUE_OUT_OF_RANGE
        raise UnfitError(code) from error


def clear_any(message: Any) -> bool:
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        message.Clear()
        return True
    return any([clear_any(below) for below in submessages(message)])


def same(ours: Any, theirs: Any) -> bool:
    match theirs:
        case Json(value):
            return ours is not None and (value is ... or json.loads(ours) == value)
        case Closed(value, numbers):
            return same(without_unknown(ours, numbers), value)
        case AtLeast(entries):
            return same({key: dict(ours).get(key) for key in entries}, entries)
        case dict():
            items = dict(ours) if isinstance(ours, list) else ours
            return (
                isinstance(items, dict)
                and len(ours) == len(theirs)
                and items.keys() == theirs.keys()
                and all(same(items[key], value) for key, value in theirs.items())
            )
        case list():
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, datetime):
        ours = (ours - EPOCH) // timedelta(microseconds=1)
    if isinstance(theirs, float):
        return struct.pack("<d", ours) == struct.pack("<d", theirs) or ours != ours != theirs
    return type(ours) is type(theirs) and bool(ours == theirs)


def without_unknown(ours: Any, numbers: set[str]) -> Any:
    if isinstance(ours, list):
        return [each for each in ours if not unknown(each, numbers)]
    return None if unknown(ours, numbers) else ours


def unknown(text: Any, numbers: set[str]) -> bool:
    return isinstance(text, str) and text.lstrip("-").isdigit() and text not in numbers


def check(case: Case, payloads: list[bytes]) -> None:
    decoded = case.decoder.decode(pa.array(payloads, pa.binary()))
    decoded.ok.validate(full=True)
    assert decoded.ok.schema.names == [c.name for c in case.decoder.columns]
    assert decoded.ok.schema.types == [c.type for c in case.decoder.columns]
    ours = by_index(decoded)
    failed = {failure.index: failure.code for failure in decoded.failed}
    assert sorted([*ours, *failed]) == list(range(len(payloads)))
    for index, payload in enumerate(payloads):
        try:
            strange = list(foreign(case.unfolded.FromString(payload)))
            if any(strange):
                text = {ErrorCode.INVALID_UTF8} if case.proto2 else set()
                assert failed.get(index) in {ErrorCode.PAYLOAD_MISMATCH} | text, payload.hex()
                continue
            assert (index in decoded.unknown) == (bool(strange) and index in ours), payload.hex()
            theirs = expected(case.cls.FromString(payload), case.pool)
        except ParseError:
            assert index in failed, payload.hex()
        except UnicodeDecodeError:
            assert failed.get(index) == ErrorCode.INVALID_UTF8, payload.hex()
        except UnfitError as unfit:
            assert failed.get(index) == unfit.code, payload.hex()
        else:
            if failed.get(index) == ErrorCode.INVALID_UTF8:
                # in a part that the runtime shows otherwise, or not any more
                assert case.proto2, payload.hex()
                continue
            assert index in ours, (failed[index], payload.hex())
            for name, value in theirs.items():
                assert same(ours[index][name], value), (name, payload.hex())


def allowed(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return type_.num_fields > 0 and all(f.nullable and allowed(f.type) for f in type_)
    if pa.types.is_map(type_):
        return allowed(type_.key_type) and allowed(type_.item_type)
    if pa.types.is_list(type_):
        return bool(type_.value_field.nullable) and allowed(type_.value_type)
    return type_ in {
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(20, 0),
        pa.string(),
        pa.binary(),
        pa.timestamp("us", "UTC"),
    }


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_rows_are_what_the_official_runtime_reads(file: FileDescriptorProto, seed: int) -> None:
    this = case(file, seed)
    payloads = [populate(this.cls(), this.rnd, 0).SerializePartialToString() for _ in range(12)]
    check(this, payloads)


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_joined_payloads_merge_as_the_specification_says(
    file: FileDescriptorProto, seed: int
) -> None:
    this = case(file, seed)
    parts = [populate(this.cls(), this.rnd, 2).SerializePartialToString() for _ in range(12)]
    check(this, [this.rnd.choice(parts) + this.rnd.choice(parts) for _ in range(12)])


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_damaged_payloads_fail_when_the_official_parser_refuses_them(
    file: FileDescriptorProto, seed: int
) -> None:
    this = case(file, seed)
    parts = [populate(this.cls(), this.rnd, 2).SerializePartialToString() for _ in range(4)]
    check(this, [damaged(this.rnd.choice(parts), this.rnd) for _ in range(24)])


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_both_ways_give_the_same(file: FileDescriptorProto, seed: int) -> None:
    this = case(file, seed)
    good = [populate(this.cls(), this.rnd, 1).SerializePartialToString() for _ in range(6)]
    payloads = good + [damaged(this.rnd.choice(good), this.rnd) for _ in range(12)]
    quick = this.decoder.decode(pa.array(payloads, pa.binary()))
    this.decoder._engine = None
    # the careful way is held to the official runtime too
    check(this, payloads)
    careful = this.decoder.decode(pa.array(payloads, pa.binary()))
    assert quick.ok.schema == careful.ok.schema
    failed, refused = ({f.index: f.code for f in each.failed} for each in (quick, careful))
    stricter = {i for i in failed.keys() - refused.keys() if this.proto2}
    assert all(failed[i] is ErrorCode.INVALID_UTF8 for i in stricter)
    assert {i: code for i, code in failed.items() if i not in stricter} == refused
    one, other = (by_index(each) for each in (quick, careful))
    for index, row in one.items():
        assert repr(ordered(row)) == repr(ordered(other[index])), payloads[index].hex()


def by_index(decoded: Decoded) -> dict[int, dict[str, Any]]:
    rows = decoded.ok.to_pylist()
    origin = range(len(rows)) if decoded.origin is None else decoded.origin.to_pylist()
    return dict(zip(origin, rows, strict=True))


@given(file=schemas())
def test_columns_have_types_that_a_lake_can_hold(file: FileDescriptorProto) -> None:
    columns = case(file, 0).decoder.columns
    assert [c.number for c in columns] == [f.number for f in file.message_type[0].field]
    assert all(allowed(c.type) for c in columns)


@given(file=schemas(), seed=st.integers(0, 2**32))
def test_versions_decoded_together_give_what_each_gives_alone(
    file: FileDescriptorProto, seed: int
) -> None:
    older = FileDescriptorProto()
    older.CopyFrom(file)
    message = older.message_type[0]
    dropped = random.Random(seed).randrange(len(message.field))
    if len(message.field) > 1 and not message.field[dropped].HasField("oneof_index"):
        del message.field[dropped]
    wide, narrow = case(file, seed), case(older, seed + 1)
    # the older version also gets payloads with fields that it does not know
    payloads = [
        populate(rnd_case.cls(), rnd_case.rnd, 1).SerializePartialToString()
        for rnd_case in (wide, wide, narrow, wide, narrow)
    ]
    arrays = [pa.array(payloads[:2], pa.binary()), pa.array(payloads[2:], pa.binary())]
    decoders = (wide.decoder, narrow.decoder)
    together = decode_together(decoders, arrays)
    if together is not None:
        for decoder, array, found in zip(decoders, arrays, together, strict=True):
            alone = decoder.decode(array)
            assert found.ok.schema == alone.ok.schema
            assert repr(ordered(found.ok.to_pylist())) == repr(ordered(alone.ok.to_pylist()))
            assert (found.origin, found.failed) == (alone.origin, alone.failed)


def ordered(value: Any) -> Any:
    """The entries of a map have no order of their own, neither in JSON text."""
    if isinstance(value, str) and value[:1] in "{[":
        with suppress(ValueError):
            return json.dumps(json.loads(value), sort_keys=True)
    if isinstance(value, dict):
        return {key: ordered(each) for key, each in value.items()}
    if isinstance(value, list):
        entries = [ordered(each) for each in value]
        return sorted(entries, key=repr) if isinstance(next(iter(value), 0), tuple) else entries
    return tuple(map(ordered, value)) if isinstance(value, tuple) else value
