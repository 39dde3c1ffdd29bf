"""Schemas that no registry has: inferred from records, brought by change files, or in records."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

from distributary.errors import SchemaNotFoundError
from distributary.model.names import printable
from distributary.model.record import Compiled, Format, SubjectVersion, WriterSchema
from distributary.registry.compile import compile_schema
from distributary.registry.compile.avro_compiler import compiled
from distributary.registry.compile.avro_schema import parse_avro
from distributary.registry.folder import ID_FILE, FileRegistry, id_name
from distributary.registry.folder_files import (
    DOUBTS,
    create,
    damaged,
    read_doubts,
    read_json,
    unreachable,
)
from distributary.store.base import Store, at, local_folder

# Inferred schemas. Each is a JSON Schema of all records of one kind so far, and only grows. The
# folder is a registry like any other, so that rows can name the version they were decoded with. Its
# ids are above those that a record can carry.

FIRST_ID = 2**32
"""The lowest id of a schema without a registry, above the 32 bits in a record's header."""
_TRIALS = 2**31
_MOST_RECALLED = 100
"""The largest number of claims that are recalled from earlier runs; reading more would take as long
as the first batch, which names them anyway."""


class InferredSchemas:
    """The schemas inferred from a pipeline's records, by the claim of the records."""

    def __init__(self, folder: str | Path, *, trial: bool = False) -> None:
        """Open the schemas in a folder; with `trial` nothing is written to it."""
        self._store = at(folder)
        self._kept = FileRegistry(folder)
        self._newest: dict[str, tuple[WriterSchema, dict[str, Any]]] = {}
        self._absent: set[str] = set()
        """Claims that had no schema when the folder was read."""
        self._doubts: dict[str, list[dict[str, Any]]] | None = None
        """The doubts as they were written last; None: not read yet."""
        self._trial = trial
        self._tried: dict[tuple[str, str], int] = {}
        """The numbers that a trial gave, by claim and text."""

    def newest(self, claim: str) -> WriterSchema:
        """Return the current schema of a claim, or raise SchemaNotFoundError if it has none."""
        self.load([claim])
        if claim not in self._newest:
            raise SchemaNotFoundError(
                "no record with the schema of this table has arrived yet",
                where=claim,
                next_step="replay the dead letters once the table has rows",
            )
        return self._newest[claim][0]

    def document(self, claim: str) -> dict[str, Any] | None:
        """Return the current schema of a claim as JSON, or None."""
        self.load([claim])
        return self._newest[claim][1] if claim in self._newest else None

    def load(self, claims: Iterable[str]) -> None:
        """Read the schemas of claims that were not read yet, with one listing for all of them."""
        unread = set(claims) - self._newest.keys() - self._absent
        if not unread:
            return
        # the folder is created with the first schema
        schemas = self._kept.newest(unread) if self._store.exists() else {}
        self._newest |= {claim: self._read(schema) for claim, schema in schemas.items()}
        self._absent |= unread - schemas.keys()

    def add(self, documents: Mapping[str, dict[str, Any]]) -> None:
        """Set the current schemas, by claim; older versions stay as they were."""
        if not documents:
            return
        texts = {
            claim: json.dumps(document, ensure_ascii=False, sort_keys=True)
            for claim, document in documents.items()
        }
        if self._trial:
            for claim, text in texts.items():
                self._newest[claim] = self._only_tried(claim, text), json.loads(text)
        else:
            written = self._kept.register_all(texts, format=Format.JSON)
            self._newest |= {claim: self._read(schema) for claim, schema in written.items()}
        self._absent -= documents.keys()

    def note_doubts(
        self,
        doubts: Mapping[str, Sequence[Mapping[str, Any]]],
        later: Mapping[str, Mapping[str, Mapping[str, int]]] = MappingProxyType({}),
    ) -> None:
        """Write columns, by claim, whose kind was decided on few values or on several kinds.

        The numbers of `later` values of other kinds, by claim and column, are added to them.
        """
        new = {claim: list(columns) for claim, columns in doubts.items() if columns}
        others = {claim: columns for claim, columns in later.items() if columns}
        if not (new or others) or self._trial:
            return
        if self._doubts is None:
            self._doubts = read_doubts(self._store.address)
        for claim, columns in new.items():
            known = self._doubts.get(claim, ())
            by_column = {doubt["column"]: doubt for doubt in (*known, *columns)}
            self._doubts[claim] = list(by_column.values())
        more = [self._add_later(claim, columns) for claim, columns in others.items()]
        if new or any(more):
            self._write_doubts(self._doubts)

    def _add_later(self, claim: str, columns: Mapping[str, Mapping[str, int]]) -> bool:
        """Add numbers of values to the doubts of a claim; return whether there are such doubts."""
        found = [d for d in (self._doubts or {}).get(claim, ()) if d["column"] in columns]
        for doubt in found:
            counts = columns[doubt["column"]]
            doubt["later"] = dict(Counter(doubt.get("later", {})) + Counter(counts))
        return bool(found)

    def settle_doubts(self, claim: str, column: str | None = None) -> None:
        """Remove the doubts about a column, or about all columns of a claim."""
        doubts = read_doubts(self._store.address)
        self._doubts = None
        if claim in doubts:
            remaining = [
                doubt for doubt in doubts.pop(claim) if column not in (None, doubt["column"])
            ]
            self._write_doubts(doubts | ({claim: remaining} if remaining else {}))

    def _write_doubts(self, doubts: Mapping[str, Any]) -> None:
        with unreachable(self._store):
            self._store.write(DOUBTS, json.dumps(doubts, ensure_ascii=False).encode())

    def claims(self) -> tuple[str, ...]:
        """Return all claims that have a schema."""
        return self._kept.subjects() if self._store.exists() else ()

    def recalled(self) -> tuple[str, ...]:
        """Return claims with a schema from earlier runs, if reading them takes no requests."""
        local = local_folder(self._store.address) is not None
        return self.claims()[:_MOST_RECALLED] if local else ()

    def forget(self, claim: str) -> None:
        """Delete the schema of a claim; rows can still look up the version that they name."""
        self._kept.delete_subject(claim)
        self.settle_doubts(claim)
        self._newest.pop(claim, None)
        self._absent.discard(claim)

    def _read(self, schema: WriterSchema) -> tuple[WriterSchema, dict[str, Any]]:
        return replace(schema, id=FIRST_ID + schema.id), json.loads(self._kept.text(schema.id))

    def _only_tried(self, claim: str, text: str) -> WriterSchema:
        number = self._tried.setdefault((claim, text), len(self._tried) + 1)
        version = [tried_text for name, tried_text in self._tried if name == claim].index(text) + 1
        compiled, place = compile_schema(text, format=Format.JSON), SubjectVersion(claim, version)
        return compiled.writer(FIRST_ID + _TRIALS + number, Format.JSON, (place,))


# The schemas of change files, as a registry that is only read.
#
#     <folder>/<guid, 32 hex digits>.avsc     a schema, written by the first task that met it
#     <folder>/ids/00000007.json              the schema with id 7: its GUID, its record's name
#
# Tasks derive the GUID from the schema's text. Only the driver gives ids, and they never change.


def guid_of(text: bytes) -> UUID:
    """Return the GUID of a schema: the first half of a digest of its text."""
    return UUID(bytes=hashlib.sha256(text).digest()[:16])


def keep_schema(folder: str | Path, text: bytes) -> None:
    """Write a schema, unless it exists; several tasks may call this at the same time."""
    store, name = at(folder), _schema_name(guid_of(text))
    with unreachable(store):
        if store.look(name) is None:
            store.create(name, text)


def read_schema(store: Store, guid: UUID) -> str | None:
    """Return the text of a stored schema, or None."""
    name = _schema_name(guid)
    with unreachable(store):
        try:
            data = store.read(name)
        except FileNotFoundError:
            return None
    if guid_of(data) != guid:
        raise damaged(store, name)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise damaged(store, name) from None


@dataclass(frozen=True, slots=True)
class _SchemaEntry:
    """A schema's id, GUID and place."""

    id: int
    guid: UUID
    place: SubjectVersion


class FileSchemas:
    """The registry over the schemas of change files; its subjects are the names of records."""

    def __init__(self, folder: str | Path) -> None:
        self._store = at(folder)
        self._by_id: dict[int, _SchemaEntry] = {}
        self._by_guid: dict[UUID, _SchemaEntry] = {}
        self._schemas: dict[int, WriterSchema] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return a schema that was met before."""
        return self._schema(self._entry(schema_id))

    def by_id_now(self, schema_id: int) -> WriterSchema:
        """Return a schema that was met before; its place never changes."""
        return self.by_id(schema_id)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return the schema of a change file, giving it an id if it has none yet."""
        if guid not in self._by_guid:
            self._learn()
        if guid not in self._by_guid:
            # compiled first, because a schema that does not compile gets no id
            self._give_id(guid, self._compiled(guid).message)
        return self._schema(self._by_guid[guid])

    def latest(self, subject: str) -> WriterSchema:
        """Return the last schema of a record's name."""
        versions = self._versions(subject)
        if not versions:
            raise _missing(subject)
        return self._schema(versions[max(versions)])

    def version(self, subject: str, version: int) -> WriterSchema:
        """Return one of the schemas of a record's name, counted from 1."""
        versions = self._versions(subject)
        if version not in versions:
            raise _missing(f"{subject}, version {version}")
        return self._schema(versions[version])

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a record's schema."""
        return tuple(sorted(self._versions(subject)))

    def subjects(self) -> tuple[str, ...]:
        """Return the names of all records."""
        self._learn()
        return tuple(sorted({entry.place.subject for entry in self._by_id.values()}))

    def _entry(self, schema_id: int) -> _SchemaEntry:
        if schema_id not in self._by_id:
            self._learn()
        if schema_id not in self._by_id:
            raise _missing(f"id {schema_id}")
        return self._by_id[schema_id]

    def _versions(self, subject: str) -> dict[int, _SchemaEntry]:
        self._learn()
        places = ((entry.place, entry) for entry in self._by_id.values())
        return {place.version: entry for place, entry in places if place.subject == subject}

    def _schema(self, entry: _SchemaEntry) -> WriterSchema:
        if entry.id not in self._schemas:
            compiled_schema = self._compiled(entry.guid)
            self._schemas[entry.id] = compiled_schema.writer(entry.id, Format.AVRO, (entry.place,))
        return self._schemas[entry.id]

    def _compiled(self, guid: UUID) -> Compiled:
        text = read_schema(self._store, guid)
        if text is None:
            raise _missing(f"GUID {guid}")
        # the original text, because attributes that Avro does not define give columns their types
        return compiled(parse_avro(text, datastream=True), text.encode())

    def _learn(self) -> None:
        """Read the ids that this process or an earlier one has given."""
        with unreachable(self._store):
            names = [file.name.rpartition("/")[2] for file in self._store.files("ids")]
        numbers = {int(name[1]) for name in map(ID_FILE.fullmatch, names) if name}
        for number in sorted(numbers - self._by_id.keys()):
            self._remember(number)

    def _remember(self, schema_id: int) -> None:
        name = id_name(schema_id)
        with unreachable(self._store):
            content = read_json(self._store, name) or {}
        try:
            place = SubjectVersion(str(content["record"]), int(content["version"]))
            entry = _SchemaEntry(schema_id, UUID(content["guid"]), place)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise damaged(self._store, name) from None
        self._by_id[schema_id] = entry
        self._by_guid.setdefault(entry.guid, entry)

    def _give_id(self, guid: UUID, record: str) -> None:
        schema_id = max(self._by_id, default=0)
        while guid not in self._by_guid:
            schema_id += 1
            version = max(self._versions(record), default=0) + 1
            content = {"id": schema_id, "guid": str(guid), "record": record, "version": version}
            with unreachable(self._store):
                create(self._store, id_name(schema_id), content)
            # if another process was faster, this id belongs to another schema
            self._remember(schema_id)


def _schema_name(guid: UUID) -> str:
    return f"{guid.hex}.avsc"


def _missing(
    which: str, *, what: str = "no change file has brought this schema"
) -> SchemaNotFoundError:
    step = "the folder of schemas is part of the checkpoint: restore it whole"
    return SchemaNotFoundError(what, where=printable(which), next_step=step)


class CarriedSchemas:
    """Schemas that records carry, in JSON of Kafka Connect; with `trial` only in memory."""

    def __init__(self, folder: str | Path, *, trial: bool = False) -> None:
        self._store = at(folder)
        self._trial = trial
        self._schemas: dict[UUID, WriterSchema] = {}
        self._newest: dict[str, UUID] = {}

    def keep(self, text: str) -> None:
        """Write a schema, unless it exists."""
        guid = guid_of(text.encode())
        if guid not in self._schemas:
            if not self._trial:
                keep_schema(self._store.address, text.encode())
            self._schemas[guid] = _schema(guid, text)

    def note(self, claim: str, guid: UUID) -> None:
        """Save the schema that the last records of a claim came with."""
        if self._newest.get(claim) != guid:
            self._newest[claim] = guid
            if not self._trial:
                self._store.write(_note(claim), guid.hex.encode())

    def newest(self, claim: str) -> WriterSchema:
        """Return the schema that the last records of a claim came with."""
        guid = self._newest.get(claim)
        if guid is None:
            try:
                guid = UUID(hex=self._store.read(_note(claim)).decode("ascii"))
            except (OSError, ValueError):
                raise SchemaNotFoundError(
                    "no record with a schema for this table has arrived",
                    where=claim,
                    next_step="nothing, if the table never had a row",
                ) from None
            self._newest[claim] = guid
        return self.by_guid(guid)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return a schema that came with a record before."""
        if guid not in self._schemas:
            text = read_schema(self._store, guid)
            if text is None:
                raise _missing(str(guid), what="no record has brought this schema")
            self._schemas[guid] = _schema(guid, text)
        return self._schemas[guid]


def _note(claim: str) -> str:
    # a digest, because names of tables may contain characters that file names may not
    return f"{hashlib.sha256(claim.encode()).hexdigest()}.newest"


def _schema(guid: UUID, text: str) -> WriterSchema:
    # 62 bits of a digest, above the ids that are counted from one
    number = FIRST_ID + (guid.int >> 66 | 1 << 40)
    return WriterSchema(number, Format.JSON, text.encode(), "event")
