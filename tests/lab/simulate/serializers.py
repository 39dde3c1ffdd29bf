"""The serializers of confluent-kafka, told the id of a schema that is registered already.

Left alone they would ask the registry themselves, and the one for protobuf would register a
compiled form of the schema in place of its text.
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

from distributary.registry.compile.protobuf_compiler import compile_proto


def protobuf_serializer(text: str, schema_id: int) -> Callable[[bytes], bytes]:
    """Frames encoded messages, the first of their schema's file, as other producers do."""
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(compile_proto(text).body).file
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
    """Encodes values by a schema; behind the registry's header, or bare when there is no id."""
    settings = {
        "auto.register.schemas": False,
        "subject.name.strategy": lambda context, record: None,
        "schema.id.serializer": _framing("AVRO", schema_id),
    }
    serializer = AvroSerializer(_nobody(), text, conf=settings)
    return lambda value: serializer(value, None) or b""


def _nobody() -> SchemaRegistryClient:
    """The client that it insists on, and never asks anything."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def _framing(format: str, schema_id: int | None) -> Callable[[bytes, Any, Any], bytes]:
    def frame(payload: bytes, context: Any, found: Any) -> bytes:
        if schema_id is None:
            return payload
        # the first message of the file
        indexes = [0] if format == "PROTOBUF" else None
        known = SchemaId(format, schema_id, None, indexes)
        return bytes(prefix_schema_id_serializer(payload, context, known))

    return frame
