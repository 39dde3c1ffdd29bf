"""Messages of a real connector, as they were in Kafka: seven connectors over one database.

`js` and `jn` wrote JSON with and without schemas, `av` Avro; `fs`, `fn` and `fa` the same without
envelopes, with `__op`, `__table` and positions; `ft` the same in JSON, where only tombstones tell
of deletes. In the database: every kind of column (`kinds`), a story with DDL in it (`items`), whole
images (`whole`), columns that are not null (`strict`), large values (`toast`), no key (`nokey`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.change.connect_frames import NONE, split_connect
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.json.infer import infer
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import RAW, Format, WriterSchema
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.json_samples import writer_schema

SETTINGS = ChangeSettings(format="debezium")
LIMITS = DecodeLimits()
Row = dict[str, Any]


@cache
def _captured() -> Any:
    return json.loads(Path(__file__).with_name("debezium_captured.json").read_text("utf-8"))


def _bytes(given: Any) -> bytes | None:
    match given:
        case None:
            return None
        case str():
            return given.encode()
        case {"base64": data}:
            return base64.b64decode(data)
    schema = _captured()["connect_schemas"][given["schema"]]
    return f'{{"schema":{schema},"payload":{given["payload"]}}}'.encode()


def topics() -> list[str]:
    """All that were captured."""
    return list(_captured()["topics"])


def messages(topic: str) -> pa.Table:
    """A captured topic, as the source gives it."""
    return raw_table(
        [
            {
                "key": _bytes(each["key"]),
                "value": _bytes(each["value"]),
                "headers": [{"key": k, "value": v.encode()} for k, v in each["headers"]],
                "offset": each["offset"],
                "timestamp": each["timestamp"] * 1_000,
            }
            for each in _captured()["topics"][topic]
        ],
        topic=topic,
    )


def raw_table(rows: Iterable[Mapping[str, Any]], *, topic: str = "shop.public.t") -> pa.Table:
    """Messages of our own, with numbers for what they do not say."""
    full = [
        {"topic": topic, "partition": 0, "offset": n, "timestamp": n * 1_000_000, **row}
        for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(full, RAW)


def connect_schema(text: bytes) -> WriterSchema:
    """The schema that messages carry as one to decode them with."""
    return WriterSchema(1, Format.JSON, text, "event")


def avro_schema(id_: int) -> WriterSchema:
    """A captured schema, compiled as the registry's."""
    compiled = compile_avro(_captured()["avro_schemas"][str(id_)])
    return WriterSchema(id_, Format.AVRO, compiled.body, compiled.message)


def decoders(
    raw: pa.Table,
    settings: ChangeSettings = SETTINGS,
    *,
    limits: DecodeLimits = LIMITS,
    schemas: Callable[[int], WriterSchema] = avro_schema,
) -> list[tuple[DebeziumDecoder, pa.BinaryArray, list[int]]]:
    """A decoder for each schema in a topic, its payloads, and where they were."""
    values = raw.column("value").combine_chunks()
    first = next(v for v in values.to_pylist() if v is not None)
    if first[:1] == b"\0":
        return _by_avro(raw, settings, limits, schemas)
    frames = split_connect(values)
    if frames.schemas:
        groups = [
            [i for i, c in enumerate(frames.codes) if c == n] for n in range(len(frames.schemas))
        ]
        made = [DebeziumDecoder(connect_schema(text), settings, limits) for text in frames.schemas]
        return [
            (each, frames.payloads.take(rows), rows)
            for each, rows in zip(made, groups, strict=True)
        ]
    assert set(frames.codes.tolist()) <= {NONE}
    shape = infer(values.drop_null())
    assert shape is not None
    schema = writer_schema(shape)
    rows = list(range(len(values)))
    return [(DebeziumDecoder(schema, settings, limits), values.fill_null(b""), rows)]


def _by_avro(
    raw: pa.Table,
    settings: ChangeSettings,
    limits: DecodeLimits,
    schemas: Callable[[int], WriterSchema],
) -> list[tuple[DebeziumDecoder, pa.BinaryArray, list[int]]]:
    keys, values = raw.column("key").to_pylist(), raw.column("value").to_pylist()
    groups: dict[tuple[int, int], list[int]] = {}
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        if value is not None:
            ids = int.from_bytes(value[1:5]), int.from_bytes((key or b"")[1:5])
            groups.setdefault(ids, []).append(row)
    found = []
    for (schema, key), rows in groups.items():
        key_schema = schemas(key) if key else None
        decoder = DebeziumDecoder(schemas(schema), settings, limits, key=key_schema)
        found.append((decoder, pa.array([values[row][5:] for row in rows], pa.binary()), rows))
    return found


def log_of(topic: str, settings: ChangeSettings = SETTINGS) -> list[Row]:
    """The rows of a captured topic's log, in the order of the topic; nothing may fail."""
    return log(messages(topic), settings)


def log(
    raw: pa.Table,
    settings: ChangeSettings = SETTINGS,
    *,
    schemas: Callable[[int], WriterSchema] = avro_schema,
) -> list[Row]:
    """The rows of a topic's log, in the order of the topic; nothing may fail."""
    found: list[tuple[int, Row]] = []
    for decoder, payloads, rows in decoders(raw, settings, schemas=schemas):
        decoded = decoder.decode(payloads, raw.take(rows))
        assert decoded.failed == ()
        assert decoded.ok.schema.names == [column.name for column in decoder.columns]
        origin = range(len(rows)) if decoded.origin is None else decoded.origin.to_pylist()
        found += zip([rows[i] for i in origin], decoded.ok.to_pylist(), strict=True)
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def columns_of(topic: str) -> dict[str, pa.DataType]:
    """The types of the table's columns, of the first schema of a captured topic."""
    decoder, _, _ = decoders(messages(topic))[0]
    return {column.name: column.type for column in decoder.columns[10:]}


def table_row(row: Row) -> Row:
    """A row without the columns of the log."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def decode(
    schema: WriterSchema,
    events: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    settings: ChangeSettings = SETTINGS,
    key: WriterSchema | None = None,
) -> Decoded:
    """Decode events of our own."""
    given = keys if keys is not None else [b'{"id":1}'] * len(events)
    raw = raw_table({"key": k, "value": v} for k, v in zip(given, events, strict=True))
    return DebeziumDecoder(schema, settings, LIMITS, key=key).decode(
        pa.array(events, pa.binary()), raw
    )
