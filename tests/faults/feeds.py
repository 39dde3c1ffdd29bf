"""Sources that the harness fills itself, and the pipeline files that read them.

A feed makes records with ids of its own, writes them where a pipeline reads, and notes in the
oracle's book what it wrote. Records are encoded here, byte by byte: only the registry's folder is
written with the product's code, because it is a format of the product.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from distributary.registry.folder import FileRegistry
from tests.faults.oracle import ID, Book, Change, make_id
from tests.topics import Topics

_ID_BYTES = re.compile(ID.pattern.encode())
TYPES = ("chess", "go", "poker", "darts", "bridge", "rugby", "tag", "golf")
_WRAPPER = """\
message wrapper {
  optional string game_name = 1;
  optional int32 schema_id = 2;
  optional bytes payload = 3;
}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """One column of the matrix: a source, a way to publish, a place for the lake."""

    name: str
    source: str
    tables: str = ""
    """Settings of the `tables` section beside the three names."""
    on_store: bool = False
    jobs: str = "run"
    """`run`, `up` (the same under a supervisor) or `shards`."""
    format: str = ""
    """Of change files."""
    registry: str = "folder"
    """`folder`, or `http`: the same folder behind a server."""
    cdc: str = ""
    """Settings of the `cdc` section beside its format."""

    @property
    def is_change_data(self) -> bool:
        return self.source == "files"

    @property
    def is_delta(self) -> bool:
        """Whether all tables are Delta tables."""
        return "format: parquet" not in self.tables

    @property
    def layers(self) -> frozenset[str]:
        if self.is_change_data:
            return frozenset() if "log: false" in self.cdc else frozenset({"log"})
        return frozenset({"bronze", "unified"})


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("delta", "delta"),
        Shape("spark", "delta", tables=", publisher: spark"),
        Shape("parquet", "delta", tables=", format: parquet"),
        Shape("iceberg", "delta", tables=", format: iceberg"),
        Shape("http", "delta", registry="http"),
        Shape("kafka", "kafka"),
        Shape("kafka-parquet", "kafka", tables=", format: parquet"),
        Shape("avro", "files", format="avro"),
        Shape("json", "files", format="json"),
        Shape("hidden", "files", format="json", cdc=", log: false"),
        Shape("store", "delta", on_store=True),
        Shape("up", "delta", jobs="up"),
        Shape("shards", "delta", jobs="shards"),
    )
}


@dataclass(slots=True)
class Site:
    """The folders of one round."""

    root: Path
    address: str
    """Of the lake: a folder, or a place in a bucket."""
    options: Mapping[str, str] = field(default_factory=dict)
    servers: str = ""
    """The broker, where there is one."""
    registry: str = ""
    """The address of the registry, if it is not a folder."""
    column: str = "c"
    """What the names of columns begin with that versions of a schema add."""

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def file(self) -> Path:
        return self.root / "games.yaml"

    @property
    def progress(self) -> Path:
        """All checkpoints of the round."""
        return self.lake / "_checkpoints"

    @property
    def checkpoint(self) -> Path:
        return self.progress / "games"


class Feed(ABC):
    """Makes records, and notes them."""

    def __init__(self, site: Site, book: Book, *, seed: int, dice: random.Random) -> None:
        self.site, self.book, self._seed, self.dice = site, book, seed, dice
        self._made = 0

    @abstractmethod
    def send(self, records: int, *, fresh_type: bool = False) -> None:
        """So many records more."""

    @abstractmethod
    def replace_source(self) -> None:
        """The source goes, and an empty one is made under its name."""

    @abstractmethod
    def held(self) -> set[str]:
        """Return the ids that the source has now; what cannot be read has none."""

    def copy_topic(self) -> Callable[[], None]:
        """Copy what a topic holds; return what makes the topic again with it."""
        raise NotImplementedError

    def take_topic_of(self, other: Feed) -> None:
        """Make the topic again with what another one holds."""
        raise NotImplementedError

    def cut_topic(self) -> None:
        """Delete the older records of a topic."""
        raise NotImplementedError

    @abstractmethod
    def source_settings(self) -> str:
        """The `source` of the pipeline file, and what belongs to it."""

    @property
    def made(self) -> int:
        """How many records there are."""
        return self._made

    def _next_id(self) -> str:
        self._made += 1
        return make_id(self._seed, self._made)


class Games(Feed):
    """Wrapped protobuf messages of a few types, whose schemas grow; some cannot be read."""

    def __init__(self, site: Site, book: Book, *, seed: int, dice: random.Random) -> None:
        super().__init__(site, book, seed=seed, dice=dice)
        self._register("wrapper-value", _WRAPPER)
        self._versions: dict[str, list[int]] = {}
        for name in TYPES[:2]:
            self._add_version(name)

    def send(self, records: int, *, fresh_type: bool = False) -> None:
        if fresh_type and len(self._versions) < len(TYPES):
            self._add_version(TYPES[len(self._versions)])
        elif self.dice.random() < 0.3:
            self._add_version(self.dice.choice(list(self._versions)))
        values = [self._record(n, records) for n in range(records)]
        self._write(values)

    def source_settings(self) -> str:
        url, folder = self.site.registry, self.site.root / "schemas"
        registry = f"url: '{url}', cache_ttl: 0s" if url else f"path: {folder}"
        return f"""
source: {self._source()}
registry: {{{registry}}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}"""

    @abstractmethod
    def _source(self) -> str: ...

    @abstractmethod
    def _write(self, values: list[bytes]) -> None: ...

    def _record(self, place: int, records: int) -> bytes:
        known = self._next_id()
        self.book.due.add(known)
        # every type is in every portion: the newest first, because it is what may go wrong
        names = list(reversed(self._versions))
        name = names[place % len(names)]
        version = self.dice.randrange(len(self._versions[name]))
        schema_id = self._versions[name][version]
        payload = _text(1, known) + _number(2, self._made)
        texts = {f"{self.site.column}{n}": f"{name} {n}" for n in range(version)}
        self.book.texts[known] = texts
        payload += b"".join(_text(3 + n, text) for n, text in enumerate(texts.values()))
        luck = self.dice.random()
        if luck < 0.04:
            # a length that points beyond the end
            self.book.bad.add(known)
            payload += bytes([2 << 3 | 2, 100]) + b"short"
        elif luck < 0.08:
            # wire type 7 does not exist
            self.book.bad.add(known)
            return b"\x0f" + known.encode()
        return _text(1, name) + _number(2, schema_id) + _bytes(3, payload)

    def _add_version(self, name: str) -> None:
        known = self._versions.setdefault(name, [])
        fields = ((f"{self.site.column}{n}", 3 + n) for n in range(len(known)))
        more = "".join(f"  optional string {column} = {number};\n" for column, number in fields)
        text = f'syntax = "proto3";\nmessage event {{\n  string id = 1;\n  int64 n = 2;\n{more}}}\n'
        known.append(self._register(f"{name}-value", text))

    def _register(self, subject: str, text: str) -> int:
        # opened each time: the folder may be another one by now
        return FileRegistry(self.site.root / "schemas", durable=False).register(subject, text)


class DeltaGames(Games):
    """In a Delta table, a few commits for each portion."""

    @property
    def _table(self) -> Path:
        return self.site.root / "source" / "wrapper"

    def _source(self) -> str:
        return f"{{type: delta, path: {self._table}, max_records_per_batch: 50}}"

    def _write(self, values: list[bytes]) -> None:
        while values:
            cut = self.dice.randint(15, 35)
            part, values = values[:cut], values[cut:]
            table = pa.table({"value": pa.array(part, pa.binary())})
            write_deltalake(str(self._table), table, mode="append")

    def replace_source(self) -> None:
        shutil.rmtree(self._table)

    def held(self) -> set[str]:
        try:
            names = DeltaTable(str(self._table)).file_uris()
            rows = [pq.read_table(name, columns=["value"])["value"].to_pylist() for name in names]
        except Exception:
            return set()
        return set(_ids(value for part in rows for value in part))


class KafkaGames(Games):
    """In a topic of two partitions."""

    def __init__(self, site: Site, book: Book, *, seed: int, dice: random.Random) -> None:
        super().__init__(site, book, seed=seed, dice=dice)
        self._topics = Topics(site.servers)
        self._topic = self._topics.create(f"faults-{uuid.uuid4().hex[:12]}", 2)
        self._values: list[list[bytes]] = [[], []]
        """By partition, what the topic holds."""
        self._first = [0, 0]
        """By partition, how many records its retention has deleted."""

    def _source(self) -> str:
        where = f"bootstrap_servers: '{self.site.servers}', topics: [{self._topic}]"
        return f"{{type: kafka, {where}, max_records_per_batch: 50}}"

    def _write(self, values: list[bytes]) -> None:
        for partition in (0, 1):
            self._topics.send(self._topic, values[partition::2], partition=partition)
            self._values[partition] += values[partition::2]

    def held(self) -> set[str]:
        kept = zip(self._values, self._first, strict=True)
        return set(_ids(value for values, first in kept for value in values[first:]))

    def copy_topic(self) -> Callable[[], None]:
        values = [list(part) for part in self._values]
        return lambda: self._make_again(values)

    def take_topic_of(self, other: Feed) -> None:
        assert isinstance(other, KafkaGames)
        self._make_again(other._values)

    def cut_topic(self) -> None:
        self._first = [len(v) - self.dice.randint(0, len(v) // 3) for v in self._values]
        self._topics.forget(self._topic, dict(enumerate(self._first)))

    def _make_again(self, values: Sequence[Sequence[bytes]]) -> None:
        self.replace_source()
        for partition, part in enumerate(values):
            self._topics.send(self._topic, part, partition=partition)
            self._values[partition] += part

    def replace_source(self) -> None:
        self._values, self._first = [[], []], [0, 0]
        self._topics.delete(self._topic)
        # the broker forgets a topic a moment after it has said so
        for _ in range(100):
            try:
                self._topics.create(self._topic, 2)
                return
            except Exception as error:
                last = error
                time.sleep(0.05)
        raise last


class Changes(Feed):
    """Files of change data: rows of two tables that come, change and go; some files come twice."""

    def __init__(
        self, site: Site, book: Book, *, seed: int, dice: random.Random, shape: Shape
    ) -> None:
        super().__init__(site, book, seed=seed, dice=dice)
        self._kind, self._cdc = shape.format, shape.cdc
        self._files = 0

    def source_settings(self) -> str:
        where = f"path: {self.site.root}/source, format: {self._kind}, settle: 0s"
        return f"""
source: {{type: files, {where}, max_files_per_batch: 3}}
cdc: {{format: datastream{self._cdc}}}"""

    def send(self, records: int, *, fresh_type: bool = False) -> None:
        names = ["orders", "users", *(["items"] if fresh_type else [])]
        if fresh_type:
            names.reverse()
        events = [self._event(names[n % len(names)]) for n in range(records)]
        # what is delivered late is the same for whoever computes the winner
        self.dice.shuffle(events)
        while events:
            cut = self.dice.randint(8, 20)
            part, events = events[:cut], events[cut:]
            for name in names:
                mine = [e for e in part if e["source_metadata"]["table"] == name]
                for _ in range(2 if self.dice.random() < 0.15 else 1):
                    self._put(name, mine)

    def replace_source(self) -> None:
        shutil.rmtree(self.site.root / "source")

    def held(self) -> set[str]:
        files = sorted(p for p in (self.site.root / "source").rglob("*") if p.is_file())
        return set(_ids(file.read_bytes() for file in files))

    def _event(self, table: str) -> dict[str, Any]:
        known = self._next_id()
        key, deleted = self.dice.randrange(40), self.dice.random() < 0.2
        time = 1_737_457_695_000 + self._made // 4
        self.book.due.add(known)
        self.book.changes.append(Change(known, table, key, (time, self._made), deleted))
        return {
            "uuid": str(uuid.UUID(int=self._made | self._seed << 64)),
            "read_timestamp": time,
            "source_timestamp": time,
            "object": f"shop_{table}",
            "read_method": "mysql-cdc-binlog",
            "stream_name": "projects/1/locations/l/streams/s",
            "schema_key": "a",
            "sort_keys": [time, "mysql-bin.000131", self._made],
            "source_metadata": {
                "table": table,
                "database": "shop",
                "primary_keys": ["id"],
                "log_file": "mysql-bin.000131",
                "log_position": self._made,
                "change_type": "DELETE" if deleted else "UPDATE",
                "is_deleted": deleted,
            },
            "payload": {"id": key, "eid": known, "note": f"note {self._made}"},
        }

    def _put(self, table: str, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        self._files += 1
        folder = self.site.root / "source" / f"shop_{table}" / "2024/05/09/06/56"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._files:06d}.{'avro' if self._kind == 'avro' else 'jsonl'}"
        new = self.site.root / f".new-{name}"
        new.write_bytes(_avro(events) if self._kind == "avro" else _lines(events))
        # moved into its place, so that it is there whole or not at all
        new.rename(folder / name)


def feed_for(shape: Shape, site: Site, book: Book, *, seed: int, dice: random.Random) -> Feed:
    """The feed of a shape."""
    if shape.source == "kafka":
        return KafkaGames(site, book, seed=seed, dice=dice)
    if shape.source == "files":
        return Changes(site, book, seed=seed, dice=dice, shape=shape)
    return DeltaGames(site, book, seed=seed, dice=dice)


def write_file(shape: Shape, site: Site, feed: Feed) -> None:
    """The pipeline file, as a user would write it."""
    names = "bronze: bronze_events, each: 'silver_{type}', unified: unified_gold"
    tables = "each: '{database}_{table}'" if shape.is_change_data else names + shape.tables
    spelled = ", ".join(f'{name}: "{value}"' for name, value in site.options.items())
    options = f", storage_options: {{{spelled}}}" if spelled else ""
    site.file.write_text(
        f"""name: games{feed.source_settings()}
tables: {{{tables}}}
lake: {{path: {site.address}, checkpoint: {site.progress}{options}}}
spark: {{master: 'local[2]', driver_memory: 1g}}
run: {{lease: 5s, batch_attempts: 2}}
"""
    )


def _ids(values: Iterable[bytes | None]) -> Iterator[str]:
    for value in values:
        yield from (found.decode() for found in _ID_BYTES.findall(value or b""))


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    return bytes(_sevens(value))


def _sevens(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


_TIME = {"type": "long", "logicalType": "timestamp-millis"}
_AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "shop",
        "fields": [
            {"name": "uuid", "type": "string"},
            {"name": "read_timestamp", "type": _TIME},
            {"name": "source_timestamp", "type": _TIME},
            *({"name": n, "type": "string"} for n in ("object", "read_method", "stream_name")),
            {"name": "schema_key", "type": "string"},
            {"name": "sort_keys", "type": {"type": "array", "items": ["string", "long"]}},
            {
                "name": "source_metadata",
                "type": {
                    "type": "record",
                    "name": "source_metadata",
                    "fields": [
                        {"name": "table", "type": "string"},
                        {"name": "database", "type": "string"},
                        {"name": "primary_keys", "type": {"type": "array", "items": "string"}},
                        {"name": "log_file", "type": ["null", "string"]},
                        {"name": "log_position", "type": ["null", "long"]},
                        {"name": "change_type", "type": ["null", "string"]},
                        {"name": "is_deleted", "type": ["null", "boolean"]},
                    ],
                },
            },
            {
                "name": "payload",
                "type": {
                    "type": "record",
                    "name": "payload",
                    "fields": [
                        {"name": "id", "type": ["null", "long"]},
                        {"name": "eid", "type": ["null", "string"]},
                        {"name": "note", "type": ["null", "string"]},
                    ],
                },
            },
        ],
    }
)


def _avro(events: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, _AVRO, events)
    return sink.getvalue()


def _lines(events: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()
