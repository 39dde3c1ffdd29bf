"""A few records of a source that nobody has described yet: the oldest and the newest, bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from distributary.config.kafka import KafkaSource
from distributary.delta.tables import reaching
from distributary.errors import DistributaryError, ErrorCode, SourceUnavailableError
from distributary.model.deadletter import FAULT_HEADER, REASON_HEADER
from distributary.observe.health import head, open_readable
from distributary.source.consumer import read
from distributary.source.files.bytes import BucketFiles
from distributary.source.files.catalogue import CataloguedFile, FoundFile, Walk, Wanted
from distributary.source.files.source import FilesReader, files_at
from distributary.source.kafka import Broker, ranges_of

MOST_RECORDS = 200
MOST_BYTES = 16 << 20
"""Of all records together; one record may be larger, and is then the last."""
_MOST_PARTITIONS = 50
_MOST_FILES = 20_000
"""Of a folder, that are looked at by name."""
_MAX_UNPACKED = 64 << 20
_VALUE_NAMES = ("value", "wrapper", "payload", "message", "data", "body")
_FORMATS = {"avro": "avro", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class Record:
    """What a record holds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of one source, and what was looked at."""

    topic: str
    records: tuple[Record, ...]
    looked_at: str
    """A phrase: `200 of 10,000 records of topic orders, the oldest and the newest`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the section `source` needs beside what was typed."""
    faults: tuple[str, ...] = ()
    """Why some of it could not be read."""


# Kafka.


def sample_topic(source: KafkaSource) -> Sample:
    """The first and the last records of each partition; nothing is committed at the broker."""
    broker = Broker(source.client_options())
    partitions = broker.partitions(source.topics, source.topic_pattern)
    first, end = broker.earliest(partitions), broker.latest(partitions)
    total = sum(end[one] - first[one] for one in partitions)
    filled = [one for one in partitions if end[one] > first[one]][:_MOST_PARTITIONS]
    each = max(MOST_RECORDS // (2 * max(len(filled), 1)), 1)
    until = {one: min(first[one] + each, end[one]) for one in filled}
    since = {one: max(end[one] - each, until[one]) for one in filled}
    records = [
        record
        for ranges in (ranges_of(first, until), ranges_of(since, end))
        for batch in read(source.consumer_options(), ranges, most_bytes=MOST_BYTES // 2)
        for record in _records(batch)
    ]
    topic = source.topics[0]
    what = f"{len(records):,} of {total:,} records of topic {topic} at {source.bootstrap_servers}"
    return Sample(topic, tuple(records), f"{what}, the oldest and the newest")


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    for row in batch.select(["key", "value", "headers"]).to_pylist():
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        yield Record(row["key"], row["value"], headers)


# A Delta table.


def sample_table(path: str) -> Sample:
    """Rows of the first and the last file, and which columns hold value, key, headers and time."""
    found = open_readable(path)
    if found is None:
        raise SourceUnavailableError(
            "there is no Delta table here",
            where=path,
            next_step="name the folder that has _delta_log in it",
        )
    columns = _columns(found.schema)
    names = [column for name, column in columns.items() if name != "timestamp"]
    count = MOST_RECORDS // 2
    with reaching(path):
        files = found.files
        if files is None:
            rows = pa.Table.from_batches(islice(found.batches(names), 1)).slice(0, MOST_RECORDS)
        else:
            fragments = list(files.get_fragments())
            ends = [fragments[0], fragments[-1]] if len(fragments) > 1 else fragments
            heads = [head(each, files.schema, names, count) for each in ends]
            rows = pa.concat_tables(heads) if heads else files.schema.empty_table().select(names)
    topic = path.rstrip("/").rpartition("/")[2] or path
    what = f"{len(rows):,} rows of the Delta table {path}, its column {columns['value']}"
    return Sample(topic, tuple(_rows(rows, columns)), what, columns)


def _columns(schema: pa.Schema) -> dict[str, str]:
    """Settings of the source by the columns that fit them; raises where none holds bytes."""
    texts = [f.name for f in schema if kinds.is_string(f.type) or kinds.is_large_string(f.type)]
    binary = [f.name for f in schema if kinds.is_binary(f.type) or kinds.is_large_binary(f.type)]
    known = [name for name in _VALUE_NAMES if name in (*binary, *texts)]
    others = [name for name in binary if name != "key"]
    if not known and not others:
        raise unclear(
            "no column of this table holds records",
            looked_at="the columns of the Delta table",
            evidence=", ".join(f"{f.name} {f.type}" for f in schema)[:300],
            next_step="a source needs a column of bytes or text: name it with source.value",
        )
    found = {"value": (known or others)[0]}
    if "key" in (*binary, *texts) and found["value"] != "key":
        found["key"] = "key"
    moments = [f.name for f in schema if kinds.is_timestamp(f.type)]
    if time := next((n for n in ("timestamp", "_timestamp") if n in moments), None):
        found["timestamp"] = time
    return found


def _rows(rows: pa.Table, columns: Mapping[str, str]) -> Iterator[Record]:
    values = rows.column(columns["value"]).cast(pa.binary())
    keys = rows.column(columns["key"]).cast(pa.binary()) if "key" in columns else None
    taken = 0
    for number, value in enumerate(values):
        taken += len(value.as_py() or b"")
        yield Record(keys[number].as_py() if keys is not None else None, value.as_py())
        if taken > MOST_BYTES:
            return


# A folder of change files.


def sample_files(root: str, options: Mapping[str, str]) -> Sample:
    """Events of the first and the last file; keys are the tables that they say they are of."""
    files = files_at(root, options)
    walk = files if isinstance(files, BucketFiles) else Walk(files.root)
    listed = list(islice(walk.files(), _MOST_FILES))
    formats = Counter(filter(None, map(_format, listed)))
    if not formats:
        raise unclear(
            "no file here is Avro, JSON or Parquet",
            looked_at=f"{len(listed):,} files below {root}",
            evidence=", ".join(sorted(file.path for file in listed[:5]))[:300] or "no file",
            next_step="name the folder in which each table has a folder of its own",
        )
    ((format_, count),) = formats.most_common(1)
    wanted = Wanted(format_)
    fitting = sorted((f for f in listed if wanted(f)), key=lambda file: file.path)
    ends = fitting[:1] + fitting[1:][-1:]
    records, faults = [], []
    with TemporaryDirectory(prefix="distributary-init-") as schemas:
        tasks = [
            [
                CataloguedFile(number, file.path, file.size, file.modified_ns, 0)
                for number, file in enumerate(ends)
            ]
        ]
        reader = FilesReader(
            files, format_, schemas, settle_seconds=0, tasks=tasks, max_unpacked_bytes=_MAX_UNPACKED
        )
        for batch in reader(iter([pa.record_batch({"task": [0]})])):
            for record in islice(_records(batch), MOST_RECORDS):
                named = dict(record.headers)
                if FAULT_HEADER in named:
                    faults.append((named.get(REASON_HEADER) or b"").decode("utf-8", "replace"))
                else:
                    records.append(record)
            if len(records) >= MOST_RECORDS:
                break
    what = f"{len(records):,} events in {len(ends)} of {count:,} {format_} files below {root}"
    topic = root.rstrip("/").rpartition("/")[2] or "files"
    return Sample(topic, tuple(records), what, {"format": format_}, tuple(faults))


def _format(file: FoundFile) -> str | None:
    suffixes = file.path.lower().rpartition("/")[2].removesuffix(".gz").rpartition(".")
    return _FORMATS.get(suffixes[2]) if suffixes[1] and file.size > 0 else None


def unclear(what: str, *, looked_at: str, evidence: str, next_step: str) -> DistributaryError:
    """What is said when nobody can tell what the records are."""
    return DistributaryError(
        what,
        code=ErrorCode.SOURCE_UNCLEAR,
        where=looked_at,
        evidence=evidence,
        next_step=next_step,
    )


def described(records: Iterable[Record]) -> str:
    """What values look like, for whoever has to tell: how many, how long, how they begin."""
    values = [record.value for record in records if record.value is not None]
    if not values:
        return "no record has a value"
    sizes = sorted(map(len, values))
    starts = Counter(value[:8].hex(" ") for value in values).most_common(2)
    begin = " or ".join(start or "nothing" for start, _ in starts)
    return f"{len(values):,} values of {sizes[0]:,} to {sizes[-1]:,} bytes that begin with {begin}"
