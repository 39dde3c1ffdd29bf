"""A serialized FileDescriptorSet, opened with the official runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ParseError
from google.protobuf.message_factory import GetMessageClass

from distributary.errors import DecodeError

OFFICIAL_MAX_DEPTH = 100
"""Submessages below a message that the official parser follows; fixed in its Python package."""


def open_pool(body: bytes, message: str, *, open_enums: bool = False) -> DescriptorPool:
    """The types of a descriptor set, apart from every other pool of the process.

    Args:
        body: The serialized set, dependencies first.
        message: Named in the error when the set cannot be used.
        open_enums: Declare enum fields as int32, which is the same on the wire, so that numbers
            a closed enum does not know are kept instead of moved to the unknown fields.
    """
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(body).file:
            if open_enums:
                _enums_to_numbers(file.message_type)
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


def _enums_to_numbers(messages: Iterable[DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            if field.type == FieldDescriptor.TYPE_ENUM:
                field.type = FieldDescriptor.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
        _enums_to_numbers(message.nested_type)
