"""Settings of Debezium's connector: what it follows, and in which shape it writes events."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.dev.ports import HOST
from distributary.dev.postgres import DATABASE, USER, Postgres

Settings = Mapping[str, str]

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.apicurio.registry.utils.converter.AvroConverter"
_BOTH = ("key", "value")


def json_events(*, schemas: bool) -> dict[str, str]:
    """JSON, in which every message carries its schema, or none does."""
    text = str(schemas).lower()
    return {f"{part}.converter": _JSON for part in _BOTH} | {
        f"{part}.converter.schemas.enable": text for part in _BOTH
    }


def avro_events(registry: str) -> dict[str, str]:
    """Avro in Confluent's frames, with schemas in a registry; takes the address of `Services`."""
    native = registry.replace("/apis/ccompat/v7", "/apis/registry/v2")
    settings = {"schema.name.adjustment.mode": "avro"}
    for part in _BOTH:
        prefix = f"{part}.converter.apicurio.registry"
        settings |= {
            f"{part}.converter": _AVRO,
            f"{prefix}.url": native,
            f"{prefix}.auto-register": "true",
            f"{prefix}.headers.enabled": "false",
            f"{prefix}.as-confluent": "true",
            # the id that the registry's Confluent door knows
            f"{prefix}.use-id": "contentId",
        }
    return settings


def flattened(*fields: str, deletes: str = "rewrite") -> dict[str, str]:
    """The row alone, without its envelope; `fields` of that are kept with `__` before them."""
    return {
        "transforms": "flat",
        "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.flat.delete.tombstone.handling.mode": deletes,
        **({"transforms.flat.add.fields": ",".join(fields)} if fields else {}),
    }


def following(postgres: Postgres, name: str, schemas: str) -> dict[str, str]:
    """A connector that writes what happens in some schemas to topics `name.schema.table`."""
    slot = "".join(c if c.isalnum() else "_" for c in name.lower())
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": postgres.password,
        "database.dbname": DATABASE,
        "schema.include.list": schemas,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "slot.drop.on.stop": "true",
        "publication.name": slot,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        # truncates are left out otherwise
        "skipped.operations": "none",
        # half a second is a long time for a test
        "poll.interval.ms": "50",
        "status.update.interval.ms": "500",
    }
