"""A task's outputs besides rows: file names, facts for the driver, metadata, dead letters."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ErrorCode
from distributary.model.change import ChangeFacts
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus, dead_letter_id
from distributary.model.facts import EventsCounted
from distributary.model.names import printable
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.routing import StageOrder
from distributary.model.table import Column

"""A fact that a task sends to the driver: a kind, and a JSON document."""
TICKET = "wanted"

_Item = TypeVar("_Item")


def gathered(
    items: Iterable[_Item], weight: Callable[[_Item], int], most: int
) -> Iterator[list[_Item]]:
    """Group items in order, at least one and at most `most` weight per group."""
    together: list[_Item] = []
    size = 0
    for item in items:
        more = weight(item)
        if together and size + more > most:
            yield together
            together, size = [], 0
        together.append(item)
        size += more
    if together:
        yield together


_NAME = re.compile(r"part-([a-z]+)-(\d+)-([^-/]*)-[^/]*\.parquet")
_DIGITS = 8


class FileOrigin(NamedTuple):
    """The origin of a staged file, parsed from its name."""

    lane: str
    batch: int
    attempt: str

    def may_be_of(self, pipeline: str) -> bool:
        """Return whether a pipeline may have staged the file.

        Names of earlier versions do not contain the pipeline.
        """
        return len(self.attempt) <= _DIGITS or self.attempt.startswith(_signature(pipeline))


def file_name(order: StageOrder) -> str:
    """Return a file name that no other task, attempt or batch uses."""
    return f"{prefix(order)}{uuid.uuid4().hex[:12]}.parquet"


def origin_of(name: str) -> FileOrigin | None:
    """Parse the name of a staged file; None if no pipeline gives such names."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return FileOrigin(match[1], int(match[2]), match[3]) if match else None


def new_attempt(pipeline: str) -> str:
    """Return the id of a new attempt, unique among all pipelines."""
    return f"{_signature(pipeline)}{uuid.uuid4().hex[:_DIGITS]}"


def _signature(pipeline: str) -> str:
    return hashlib.sha256(pipeline.encode()).hexdigest()[:_DIGITS]


def prefix(order: StageOrder) -> str:
    """Return the beginning of the names of all files of an attempt."""
    return f"part-{order.lane}-{order.batch:08d}-{order.attempt}-"


def ticket(order: StageOrder) -> str:
    """Return the path of the file that exists as long as the driver waits for an attempt."""
    return f"{order.folder}/{prefix(order)}{TICKET}"


# Facts about files.


def count_events(log: str, rows: pa.Table) -> EventsCounted:
    """Count the events of a log by operation, and find the time of the newest."""
    counts = pc.value_counts(rows.column("_op"))
    named = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    newest = pc.max(rows.column("_source_ts")).cast(pa.int64()).as_py()
    facts = ChangeFacts({str(name): count for name, count in named}, newest)
    return EventsCounted(log, facts)


# The metadata columns: where each row came from.

STRUCTURED = "application/cloudevents"
"""The beginning of the content type of a CloudEvent whose value is the whole event."""
_ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema")
CLOUD_EVENT = pa.struct(
    [
        *((name, pa.string()) for name in _ATTRIBUTES),
        ("time", TIMESTAMP),
        ("extensions", pa.map_(pa.string(), pa.string())),
    ]
)

METADATA: dict[str, Column] = {
    "key": Column("_key", pa.binary(), "key of the source record"),
    "headers": Column("_headers", pa.list_(HEADER), "headers of the source record"),
    "topic": Column("_topic", pa.string(), "topic of the source record"),
    "partition": Column("_partition", pa.int32(), "partition of the source record"),
    "offset": Column("_offset", pa.int64(), "offset of the source record"),
    "timestamp": Column("_timestamp", TIMESTAMP, "time of the source record"),
    "schema_id": Column("_schema_id", pa.int64(), "schema that the record was written with"),
    "batch": Column("_batch", pa.int64(), "batch that read the record"),
    "raw": Column("_raw", pa.binary(), "the whole value of the source record, untouched"),
    "cloudevent": Column("_cloudevent", CLOUD_EVENT, "context attributes of the CloudEvent"),
}
"""The columns that `tables.metadata` may name, in the order of the columns."""

DATE = Column("_date", pa.date32(), "day (UTC) of the source record's time; null if unknown")
"""The additional column by which all tables may be partitioned."""
TYPE = Column("_type", pa.string(), "type of the record")
"""The type in the unified table, and the column by which bronze may be partitioned."""
WINDOW = Column("_window", TIMESTAMP, "the beginning of the time in which its key is unique")
"""The first column of the key, in a table whose first records stay within a horizon."""


def metadata_plan(names: Iterable[str]) -> tuple[Column, ...]:
    """Return the metadata columns with these names, in a fixed order."""
    wanted = set(names)
    return tuple(column for name, column in METADATA.items() if name in wanted)


def metadata_columns(
    raw: pa.RecordBatch | pa.Table,
    schema_ids: pa.Int64Array,
    names: Iterable[str],
    order: StageOrder,
) -> list[tuple[str, pa.Array | pa.ChunkedArray]]:
    """Return the values of the named metadata columns for raw records."""
    wanted = set(names)
    columns: list[tuple[str, pa.Array | pa.ChunkedArray]] = []
    for name, column in METADATA.items():
        if name not in wanted:
            continue
        if name == "schema_id":
            values = schema_ids
        elif name == "batch":
            values = pa.repeat(pa.scalar(order.batch, pa.int64()), raw.num_rows)
        elif name == "cloudevent":
            values = event_attributes(raw)
        else:
            values = raw.column("value" if name == "raw" else name)
        columns.append((column.name, values))
    return columns


def event_attributes(raw: pa.RecordBatch | pa.Table) -> pa.StructArray:
    """Return the context attributes of CloudEvents, of structured and of binary mode."""
    if pa.types.is_dictionary(raw.schema.field("value").type):
        # rows of one record share its value: each event is read once
        places = raw.column("value").unify_dictionaries().combine_chunks().indices
        _, first, rows = np.unique(places.to_numpy(), return_index=True, return_inverse=True)
        some = raw.take(pa.array(first))
        plain = some.set_column(
            some.schema.get_field_index("value"), "value", _plain(some.column("value"))
        )
        return event_attributes(plain).take(pa.array(rows))
    values, headers = raw.column("value").to_pylist(), raw.column("headers")
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    # Column by column: an object per header would cost as much as all the rest.
    names, contents = (part.to_pylist() for part in headers.flatten().flatten())
    ends = [0, *pc.cumulative_sum(pc.fill_null(headers.value_lengths(), 0)).to_pylist()]
    events = [
        _attributes(value, dict(zip(names[start:end], contents[start:end], strict=True)))
        for value, (start, end) in zip(values, pairwise(ends), strict=True)
    ]
    times = [_moment(event.get("time")) for event in events]
    known = {*_ATTRIBUTES, "time"}
    extensions = [
        # An invalid time is kept as text among the extensions.
        [(n, text) for n, text in event.items() if n not in known or (n == "time" and not time)]
        for event, time in zip(events, times, strict=True)
    ]
    texts = [pa.array([event.get(n) for event in events], pa.string()) for n in _ATTRIBUTES]
    parts = [pa.array(times, TIMESTAMP), pa.array(extensions, CLOUD_EVENT.field("extensions").type)]
    return pa.StructArray.from_arrays([*texts, *parts], fields=list(CLOUD_EVENT))


def _attributes(value: bytes | None, headers: Mapping[str, bytes | None]) -> dict[str, str]:
    media = headers.get("content-type")
    whole = media is not None and media.lower().startswith(STRUCTURED.encode())
    if not whole and headers.get("ce_type") is not None:
        attributes = {
            name[3:]: text for name, text in headers.items() if name and name[:3] == "ce_"
        }
        attributes["datacontenttype"] = media
        return {
            n: text.decode(errors="replace") for n, text in attributes.items() if text is not None
        }
    try:
        event, spell = orjson.loads(value or b""), _text
    except ValueError:
        # orjson refuses documents that `json` accepts: NaN, infinity and lone surrogates.
        try:
            event, spell = json.loads(value or b""), _whole_text
        except (ValueError, RecursionError):
            return {}
    members = event.items() if isinstance(event, dict) else ()
    return {
        spell(name): spell(content)
        for name, content in members
        if content is not None and name not in ("data", "data_base64")
    }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _whole_text(content: Any) -> str:
    """Return the text of JSON with lone surrogates replaced, because no column can hold them."""
    return _text(content).encode(errors="replace").decode()


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


# Rows for the dead-letter table: the whole record, unchanged, and the error.

_LONGEST_TYPE = 200
_LONGEST_MESSAGE = 1000
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Letter:
    """The reason why the record at one position of a raw batch is a dead letter."""

    row: int
    code: ErrorCode
    message: str
    stage: str
    position: int | None = None
    type: str | None = None
    schema_id: int | None = None


def letters_batch(
    raw: pa.RecordBatch | pa.Table, letters: Sequence[Letter], order: StageOrder
) -> pa.RecordBatch:
    """Build dead-letter rows for some of the raw records."""
    rows = raw.take(pa.array([letter.row for letter in letters], pa.int64()))
    count = len(letters)
    topics, partitions, offsets = (
        rows.column(name).to_pylist() for name in ("topic", "partition", "offset")
    )
    now = pa.repeat(pa.scalar(order.now_us, DEAD_LETTER_SCHEMA.field("first_seen").type), count)
    columns = {
        "id": [
            dead_letter_id(order.pipeline, order.identities.get(where[0]) or order.life, *where)
            for where in zip(topics, partitions, offsets, strict=True)
        ],
        "pipeline": [order.pipeline] * count,
        **{name: _plain(rows.column(name)) for name in rows.schema.names},
        "type": [None if x.type is None else x.type[:_LONGEST_TYPE] for x in letters],
        "schema_id": [x.schema_id for x in letters],
        "stage": [x.stage for x in letters],
        "error_code": [str(x.code) for x in letters],
        "error_message": [x.message[:_LONGEST_MESSAGE] for x in letters],
        "error_position": [x.position for x in letters],
        "batch": [order.batch] * count,
        "first_seen": now,
        "last_seen": now,
        "attempts": [1] * count,
        "status": [str(DeadLetterStatus.OPEN)] * count,
        "note": [None] * count,
    }
    table = pa.Table.from_pydict(columns, schema=DEAD_LETTER_SCHEMA)
    return table.combine_chunks().to_batches()[0]


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column without the dictionary in which rows of one record share a value."""
    shared = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if shared else column


def spelled_value(rows: pa.Table, names: tuple[str, ...], row: int) -> str:
    """Return a column or nested field and its value in a row, for the message of a letter."""
    by_name = {name.lower(): name for name in rows.column_names}
    if names[0].lower() not in by_name:
        return ""
    try:
        value: Any = rows.column(by_name[names[0].lower()])[row].as_py()
    except (ValueError, OverflowError):
        # The value is a time outside of Python's range.
        return f"{printable('.'.join(names))} = ?"
    for name in names[1:]:
        if not isinstance(value, dict):
            break
        value = {key.lower(): inner for key, inner in value.items()}.get(name.lower())
    text = "null" if value is None else value if isinstance(value, str) else str(value)
    return f"{printable('.'.join(names))} = {printable(text, longest=_LONGEST_VALUE)}"
