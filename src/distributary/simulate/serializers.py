"""The serializers of confluent-kafka, told the id of a schema that is registered already.

Left alone they would ask the registry themselves. The one for protobuf then looks for a compiled
form of the schema, which some registries do not find under the text that its author registered, or
would register that form in place of the text, so that nobody could read or evolve it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from distributary.registry.protobuf import compile_proto

_FIRST_MESSAGE = [0]


def protobuf_serializer(text: str, schema_id: int) -> Callable[[bytes], bytes]:
    """Frames encoded messages, the first of their schema's file, as other producers do."""
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(compile_proto(text).descriptor_set).file
    for file in files:
        pool.Add(file)
    package, name = files[-1].package, files[-1].message_type[0].name
    found = pool.FindMessageTypeByName(f"{package}.{name}" if package else name)
    message = GetMessageClass(found)
    serializer = ProtobufSerializer(
        message, _nobody(), {"schema.id.serializer": _framing("PROTOBUF", schema_id)}
    )
    # without a context it has no subject, and nothing to ask the registry about
    return lambda body: serializer(message.FromString(body), None) or b""


def avro_serializer(text: str, *, schema_id: int | None) -> Callable[[object], bytes]:
    """Encodes values; behind the registry's header, or bare when there is no id.

    Args:
        text: the schema with everything that it refers to.
        schema_id: its id.
    """
    settings = {
        "auto.register.schemas": False,
        "subject.name.strategy": _no_subject,
        "schema.id.serializer": _framing("AVRO", schema_id),
    }
    serializer = AvroSerializer(_nobody(), text, conf=settings)
    return lambda value: serializer(value, None) or b""


def _nobody() -> SchemaRegistryClient:
    """The client that it insists on, and never asks anything."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def _no_subject(context: Any, record: str) -> None:
    return None


def _framing(format: str, schema_id: int | None) -> Callable[[bytes, Any, Any], bytes]:
    def frame(payload: bytes, context: Any, found: Any) -> bytes:
        if schema_id is None:
            return payload
        indexes = _FIRST_MESSAGE if format == "PROTOBUF" else None
        known = SchemaId(format, schema_id, None, indexes)
        return bytes(prefix_schema_id_serializer(payload, context, known))

    return frame
