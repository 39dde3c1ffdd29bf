"""A serialized FileDescriptorSet, opened with the official runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FeatureSet,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.errors import DecodeError

OFFICIAL_MAX_DEPTH = 100
"""Submessages below a message that the official parser follows; fixed in its Python package."""


def open_pool(
    body: bytes, message: str, *, change: Callable[[FileDescriptorProto], None] | None = None
) -> DescriptorPool:
    """The types of a descriptor set, apart from every other pool of the process.

    Args:
        body: The serialized set, dependencies first.
        message: Named in the error when the set cannot be used.
        change: Makes other types of the same wire format out of those of a file.
    """
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(body).file:
            if change is not None:
                change(file)
            pool.Add(file)
    except (ParseError, TypeError, ValueError, KeyError) as error:
        raise DecodeError(
            "the compiled schema is not a usable FileDescriptorSet",
            where=f"message {message!r}",
            evidence=f"{type(error).__name__} from the protobuf runtime: {error}",
            next_step="look at the schema in the registry; every import must be in the set, first",
        ) from error
    return pool


def find_message(pool: DescriptorPool, message: str) -> Descriptor:
    """The type with this full name."""
    try:
        return pool.FindMessageTypeByName(message)
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {message!r}",
            evidence=type(error).__name__,
            next_step="compare the message name, or the message index, with the schema's text",
        ) from error


def message_class(descriptor: Descriptor) -> Any:
    """The official runtime's class for a message."""
    try:
        return GetMessageClass(descriptor)
    except RecursionError as error:
        raise DecodeError(
            "the protobuf runtime cannot follow the messages of this schema",
            where=f"message {descriptor.full_name!r}",
            evidence="a chain of several hundred messages, each a field of the one before",
            next_step="ask the schema's author for fewer levels of messages",
        ) from error


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is declared as `map<...>`."""
    return bool(
        field.type == FieldDescriptor.TYPE_MESSAGE
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def with_open_enums(file: FileDescriptorProto) -> None:
    """Enum fields as int32: numbers that a closed enum does not know are values, not unknown."""
    for message in _messages(file):
        for field in message.field:
            if field.type == FieldDescriptor.TYPE_ENUM:
                field.type = FieldDescriptor.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")


def with_nothing_replaced(file: FileDescriptorProto) -> None:
    """No oneofs, maps and lists of messages: what is merged into one keeps all unknown fields.

    A message that takes the place of another, in a oneof or under a key, takes away the unknown
    fields of the other; and many messages in a list take longer to look at than one.
    """
    with_open_enums(file)
    for message in _messages(file):
        entries = {nested.name for nested in message.nested_type if nested.options.map_entry}
        is_entry = message.options.map_entry
        message.options.ClearField("map_entry")
        del message.oneof_decl[:]
        for field in message.field:
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            if field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
                continue
            field.label = FieldDescriptor.LABEL_OPTIONAL
            if file.edition and (is_entry or field.type_name.rpartition(".")[2] in entries):
                # a map is never made of groups, whatever its file says of messages
                field.options.features.message_encoding = FeatureSet.LENGTH_PREFIXED


def replaces_nothing(descriptor: Descriptor) -> bool:
    """Whether a type is one `with_nothing_replaced` as it is, with all that it is made of."""
    waiting, seen = [descriptor], {descriptor.full_name}
    while waiting:
        for field in waiting.pop().fields:
            if field.enum_type is not None and field.enum_type.is_closed:
                return False
            below = field.message_type
            if below is None:
                continue
            choice = field.containing_oneof
            if field.is_repeated or (choice is not None and len(choice.fields) > 1):
                return False
            if below.full_name not in seen:
                seen.add(below.full_name)
                waiting.append(below)
    return True


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    """The messages of a file, whether nested or not."""
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        yield message
        waiting += message.nested_type
