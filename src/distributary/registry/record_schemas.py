"""Schemas that no registry has: inferred from records, brought by change files, or in records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from distributary.errors import SchemaNotFoundError
from distributary.model.names import printable
from distributary.model.record import Compiled, Format, SubjectVersion, WriterSchema
from distributary.registry.compile import compile_schema
from distributary.registry.compile.avro import compiled
from distributary.registry.compile.avro_schema import parse_avro
from distributary.registry.folder import (
    ID_FILE,
    FileRegistry,
    create,
    damaged,
    id_name,
    read_json,
    unreachable,
)
from distributary.store.base import Store, at, local_folder

# Schemas that nobody wrote: what records of one kind have looked like so far, each a JSON Schema
# that only grows. The folder is a registry like any other, so that rows can name the version they
# were decoded with; its ids lie above those that a record can carry.

FIRST_ID = 2**32
"""A record's header holds 32 bits."""
_TRIALS = 2**31
_MOST_RECALLED = 100
"""Of more, the first batch of a run says it: to read them all would take as long."""


class InferredSchemas:
    """The schemas of a pipeline's records that came without any, by what the records claim."""

    def __init__(self, folder: str | Path, *, trial: bool = False) -> None:
        """With `trial` nothing is written: what is learnt is forgotten with this object."""
        self._store = at(folder)
        self._kept = FileRegistry(folder)
        self._newest: dict[str, tuple[WriterSchema, dict[str, Any]]] = {}
        self._absent: set[str] = set()
        """Claims that had no schema when the folder was read."""
        self._trial = trial
        self._tried: dict[tuple[str, str], int] = {}
        """By claim and text, the numbers that a trial gave."""

    def newest(self, claim: str) -> WriterSchema:
        """The schema by now; raises SchemaNotFoundError when no such record was ever seen."""
        self.load([claim])
        if claim not in self._newest:
            raise SchemaNotFoundError(
                "no record has shown yet what those of its table look like",
                where=claim,
                next_step="replay the dead letters once the table has rows",
            )
        return self._newest[claim][0]

    def document(self, claim: str) -> dict[str, Any] | None:
        """The schema as JSON, or None."""
        self.load([claim])
        return self._newest[claim][1] if claim in self._newest else None

    def load(self, claims: Iterable[str]) -> None:
        """Read the schemas of claims that were not read yet: with one listing for all of them."""
        wanted = set(claims) - self._newest.keys() - self._absent
        if not wanted:
            return
        # the folder is made with the first schema
        found = self._kept.newest(wanted) if self._store.exists() else {}
        self._newest |= {claim: self._read(schema) for claim, schema in found.items()}
        self._absent |= wanted - found.keys()

    def add(self, documents: Mapping[str, dict[str, Any]]) -> None:
        """Set what holds from now on, by claim; the older ones stay what they were."""
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

    def note_doubts(self, doubts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Write down columns, by claim, whose kind was decided on values of several kinds."""
        new = {claim: list(each) for claim, each in doubts.items() if each}
        if not new or self._trial:
            return
        known = read_doubts(self._store.address)
        for claim, columns in new.items():
            named = {each["column"]: each for each in (*known.get(claim, ()), *columns)}
            known[claim] = list(named.values())
        self._write_doubts(known)

    def settle_doubts(self, claim: str, column: str | None = None) -> None:
        """Strike off the doubts about a column, or about all columns of a claim."""
        known = read_doubts(self._store.address)
        if claim in known:
            kept = [each for each in known.pop(claim) if column not in (None, each["column"])]
            self._write_doubts(known | ({claim: kept} if kept else {}))

    def _write_doubts(self, doubts: Mapping[str, Any]) -> None:
        with unreachable(self._store):
            self._store.write(_DOUBTS, json.dumps(doubts, ensure_ascii=False).encode())

    def claims(self) -> tuple[str, ...]:
        """Everything that has a schema."""
        return self._kept.subjects() if self._store.exists() else ()

    def recalled(self) -> tuple[str, ...]:
        """What has a schema from earlier runs, where it takes no requests to know."""
        local = local_folder(self._store.address) is not None
        return self.claims()[:_MOST_RECALLED] if local else ()

    def forget(self, claim: str) -> None:
        """Have no schema for a claim any more; rows that name one can still be told by it."""
        self._kept.delete_subject(claim)
        self.settle_doubts(claim)
        self._newest.pop(claim, None)
        self._absent.discard(claim)

    def _read(self, schema: WriterSchema) -> tuple[WriterSchema, dict[str, Any]]:
        return replace(schema, id=FIRST_ID + schema.id), json.loads(self._kept.text(schema.id))

    def _only_tried(self, claim: str, text: str) -> WriterSchema:
        number = self._tried.setdefault((claim, text), len(self._tried) + 1)
        version = [told for name, told in self._tried if name == claim].index(text) + 1
        compiled, place = compile_schema(text, format=Format.JSON), SubjectVersion(claim, version)
        return compiled.writer(FIRST_ID + _TRIALS + number, Format.JSON, (place,))


_DOUBTS = "doubts.json"


def inferred_folder(checkpoint: str) -> str:
    """Return the folder of a checkpoint in which inferred schemas are kept."""
    return f"{checkpoint}/inferred"


def has_inferred(checkpoint: str) -> bool:
    """Whether a checkpoint has inferred schemas."""
    try:
        return bool(checkpoint) and at(inferred_folder(checkpoint)).exists()
    except OSError:
        return False


def read_doubts(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the columns whose kind was decided on values of several kinds, by claim."""
    store = at(folder)
    with unreachable(store):
        return read_json(store, _DOUBTS) or {}


# The schemas that change files carried with them, as a registry that is only read.
#
#     <folder>/<guid, 32 hex digits>.avsc     a schema, written by whichever task met it first
#     <folder>/ids/00000007.json              the schema with id 7: its GUID, its record's name
#
# Tasks make a GUID of the schema's own text; ids are given by the driver alone, and for ever.


def guid_of(text: bytes) -> UUID:
    """The name of a schema: the first half of a digest of its text."""
    return UUID(bytes=hashlib.sha256(text).digest()[:16])


def keep_schema(folder: str | Path, text: bytes) -> None:
    """Write a schema down, unless it is there; called by tasks, several at a time."""
    store, name = at(folder), _schema_name(guid_of(text))
    with unreachable(store):
        if store.look(name) is None:
            store.create(name, text)


def read_schema(store: Store, guid: UUID) -> str | None:
    """A schema that was written down, or None."""
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
class _Given:
    """A schema's id, and what it stands for."""

    id: int
    guid: UUID
    place: SubjectVersion


class FileSchemas:
    """The registry over such a folder. Subjects are the names of records."""

    def __init__(self, folder: str | Path) -> None:
        self._store = at(folder)
        self._by_id: dict[int, _Given] = {}
        self._by_guid: dict[UUID, _Given] = {}
        self._schemas: dict[int, WriterSchema] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """A schema that was met before."""
        return self._schema(self._given(schema_id))

    def by_guid(self, guid: UUID) -> WriterSchema:
        """A schema that a file has brought; it gets its id now, if it has none yet."""
        if guid not in self._by_guid:
            self._learn()
        if guid not in self._by_guid:
            # what does not compile gets no id
            self._give_id(guid, self._compiled(guid).message)
        return self._schema(self._by_guid[guid])

    def latest(self, subject: str) -> WriterSchema:
        """The schema of a record's name that came last."""
        versions = self._versions(subject)
        if not versions:
            raise _missing(subject)
        return self._schema(versions[max(versions)])

    def version(self, subject: str, version: int) -> WriterSchema:
        """One of the schemas of a record's name, counted from 1."""
        versions = self._versions(subject)
        if version not in versions:
            raise _missing(f"{subject}, version {version}")
        return self._schema(versions[version])

    def versions(self, subject: str) -> tuple[int, ...]:
        """The schemas that a record has had."""
        return tuple(sorted(self._versions(subject)))

    def subjects(self) -> tuple[str, ...]:
        """The names of all records."""
        self._learn()
        return tuple(sorted({given.place.subject for given in self._by_id.values()}))

    def _given(self, schema_id: int) -> _Given:
        if schema_id not in self._by_id:
            self._learn()
        if schema_id not in self._by_id:
            raise _missing(f"id {schema_id}")
        return self._by_id[schema_id]

    def _versions(self, subject: str) -> dict[int, _Given]:
        self._learn()
        places = ((given.place, given) for given in self._by_id.values())
        return {place.version: given for place, given in places if place.subject == subject}

    def _schema(self, given: _Given) -> WriterSchema:
        if given.id not in self._schemas:
            found = self._compiled(given.guid)
            self._schemas[given.id] = found.writer(given.id, Format.AVRO, (given.place,))
        return self._schemas[given.id]

    def _compiled(self, guid: UUID) -> Compiled:
        text = read_schema(self._store, guid)
        if text is None:
            raise _missing(f"GUID {guid}")
        # as it stood there: what its own system says beside Avro tells columns their types
        return compiled(parse_avro(text, datastream=True), text.encode())

    def _learn(self) -> None:
        """Read the ids that were given, by this process or by one before it."""
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
            given = _Given(schema_id, UUID(content["guid"]), place)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise damaged(self._store, name) from None
        self._by_id[schema_id] = given
        self._by_guid.setdefault(given.guid, given)

    def _give_id(self, guid: UUID, record: str) -> None:
        schema_id = max(self._by_id, default=0)
        while guid not in self._by_guid:
            schema_id += 1
            version = max(self._versions(record), default=0) + 1
            content = {"id": schema_id, "guid": str(guid), "record": record, "version": version}
            with unreachable(self._store):
                create(self._store, id_name(schema_id), content)
            # where another process was faster, this is the id of another schema
            self._remember(schema_id)


def _schema_name(guid: UUID) -> str:
    return f"{guid.hex}.avsc"


def _missing(
    which: str, *, what: str = "no change file has brought such a schema"
) -> SchemaNotFoundError:
    step = "the folder of schemas is part of the checkpoint: restore it whole"
    return SchemaNotFoundError(what, where=printable(which), next_step=step)


class CarriedSchemas:
    """Schemas that records carry, in JSON of Kafka Connect; with `trial`, in memory only."""

    def __init__(self, folder: str | Path, *, trial: bool = False) -> None:
        self._store = at(folder)
        self._trial = trial
        self._known: dict[UUID, WriterSchema] = {}
        self._newest: dict[str, UUID] = {}

    def keep(self, text: str) -> None:
        """Write a schema down, unless it is there."""
        guid = guid_of(text.encode())
        if guid not in self._known:
            if not self._trial:
                keep_schema(self._store.address, text.encode())
            self._known[guid] = _schema(guid, text)

    def note(self, claim: str, guid: UUID) -> None:
        """Remember which schema the records of a claim came with last."""
        if self._newest.get(claim) != guid:
            self._newest[claim] = guid
            if not self._trial:
                self._store.write(_note(claim), guid.hex.encode())

    def newest(self, claim: str) -> WriterSchema:
        """The schema that the records of a claim came with last."""
        guid = self._newest.get(claim)
        if guid is None:
            try:
                guid = UUID(hex=self._store.read(_note(claim)).decode("ascii"))
            except (OSError, ValueError):
                raise SchemaNotFoundError(
                    "no record has brought a schema for this table",
                    where=claim,
                    next_step="nothing, if the table never had a row",
                ) from None
            self._newest[claim] = guid
        return self.by_guid(guid)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """A schema that came with a record before."""
        if guid not in self._known:
            text = read_schema(self._store, guid)
            if text is None:
                raise _missing(str(guid), what="no record has brought such a schema")
            self._known[guid] = _schema(guid, text)
        return self._known[guid]


def _note(claim: str) -> str:
    # names of tables may hold what names of files may not
    return f"{hashlib.sha256(claim.encode()).hexdigest()}.newest"


def _schema(guid: UUID, text: str) -> WriterSchema:
    # 62 bits of a digest, beyond the ids that are counted from one
    number = FIRST_ID + (guid.int >> 66 | 1 << 40)
    return WriterSchema(number, Format.JSON, text.encode(), "event")
