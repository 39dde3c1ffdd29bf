"""A registry in a folder, fit for git: one small JSON file per fact, never changed once written.

<path>/config.json                          the level for all subjects
<path>/ids/00000042.json                    id, format, references, the text line by line
<path>/subjects/<subject>/3.json            version 3 of a subject: the id of its schema
<path>/subjects/<subject>/3.deleted         the mark that version 3 was deleted
<path>/subjects/<subject>/config.json       the subject's own level
<path>/.lock                                the lock of writers; readers need none
<path>/.changed                             random bytes, new after every added version
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import NAMESPACE_DNS, UUID, uuid5

from distributary.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
)
from distributary.model.names import printable, subject_folder
from distributary.model.record import Compiled, Format, SubjectVersion, WriterSchema
from distributary.registry.base import (
    LATEST,
    Reference,
    References,
    dangling,
    gather,
    in_order,
    not_found,
)
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compile import compile_schema
from distributary.registry.folder_files import create, damaged, encoded, read_json, unreachable
from distributary.store.base import Store, at, local_folder

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_THREADS = 16


def in_parallel(work: Callable[[Item], Answer], items: Collection[Item]) -> list[Answer]:
    """Run `work` for each item on several threads, because disk syncs and buckets are slow."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


# Stored schemas and versions, and their files. Ids and versions are never changed or reused.

_GUIDS = uuid5(NAMESPACE_DNS, "schemas.distributary")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema as it was registered; equal schemas share one id."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> UUID:
        """Return the GUID, which is the same in every folder but differs from Confluent's."""
        references = [
            [reference.name, reference.subject, reference.version] for reference in self.references
        ]
        return uuid5(_GUIDS, json.dumps([self.format, self.text, references]))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a subject; a deleted version keeps its number and stays readable by id."""

    version: int
    schema_id: int
    deleted: bool = False


ID_FILE = re.compile(r"([0-9]{8,10})\.json")
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.(json|deleted)")
_RESCAN_SECONDS = 1.0


class _FileStore:
    """The files of the registry, with a cache of files that never change."""

    def __init__(self, store: Store, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._schemas: dict[int, StoredSchema] = {}
        self._guids: dict[UUID, int] = {}
        self._named: set[int] = set()
        """The ids whose GUIDs are cached."""
        self._version_files: dict[tuple[str, int], tuple[str, int]] = {}
        self._scan_lock = threading.Lock()
        self._homes: dict[int, set[str]] = {}
        self._scanned_word = b""
        self._scan_again_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep out writers of all threads and processes; the lock cannot be taken twice."""
        folder = local_folder(self._store.address)
        with unreachable(self._store):
            if self._store.look(".gitignore") is None:
                self._store.write(".gitignore", b".lock\n.changed\n.new-*\n", durable=False)
            if folder is not None:
                descriptor = os.open(f"{folder}/.lock", os.O_RDWR | os.O_CREAT, 0o666)
        if folder is None:
            # in a bucket two writers collide when they create a file, and one of them fails
            yield
            return
        try:
            with unreachable(self._store):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # Unlocked explicitly, because a process forked meanwhile holds the same lock by its own
            # descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def schema(self, schema_id: int) -> StoredSchema | None:
        # a schema that is not cached is read, so new ones of other processes are seen at once
        if schema_id not in self._schemas:
            name = id_name(schema_id)
            with unreachable(self._store):
                content = read_json(self._store, name)
                if content is None:
                    self._require()
                    return None
            schema = _schema_from(content, schema_id)
            if schema is None:
                raise damaged(self._store, name)
            self._schemas[schema_id] = schema
        return self._schemas[schema_id]

    def ids(self) -> list[int]:
        names = map(ID_FILE.fullmatch, self._files("ids"))
        return sorted(int(name[1]) for name in names if name)

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of a GUID's schema; hold `exclusive` if a missing one is to be added."""
        if guid not in self._guids:
            self._learn_guids(self.ids())
        return self._guids.get(guid)

    def add_schema(self, schema: StoredSchema) -> int:
        schema_id = max(self.ids(), default=0)
        while True:
            schema_id += 1
            if self._write_schema(schema_id, schema):
                break
        self._schemas[schema_id] = schema
        return schema_id

    def _write_schema(self, schema_id: int, schema: StoredSchema) -> bool:
        """Write a schema under an id; return False if the id is taken."""
        content = {
            "id": schema_id,
            "format": str(schema.format),
            "references": [asdict(reference) for reference in schema.references],
            "schema": schema.text.split("\n"),
        }
        with unreachable(self._store):
            return create(self._store, id_name(schema_id), content, durable=self._durable)

    def add_schemas(self, schemas: Iterable[StoredSchema]) -> dict[StoredSchema, int]:
        """Return the id of each schema, writing all new ones at once."""
        schema_list = list(dict.fromkeys(schemas))
        if any(schema.guid not in self._guids for schema in schema_list):
            ids = self.ids()
            in_parallel(
                self.schema, [schema_id for schema_id in ids if schema_id not in self._named]
            )
            self._learn_guids(ids)
            new = [schema for schema in schema_list if schema.guid not in self._guids]
            first = max(ids, default=0) + 1
            numbered = list(enumerate(new, first))
            written = in_parallel(lambda pair: self._write_schema(*pair), numbered)
            for (schema_id, schema), is_ours in zip(numbered, written, strict=True):
                # in a bucket another writer may have taken the id, and then the next free one is
                # used
                new_id = schema_id if is_ours else self.add_schema(schema)
                self._schemas[new_id] = schema
                self._guids[schema.guid] = new_id
                self._named.add(new_id)
        return {schema: self._guids[schema.guid] for schema in schema_list}

    def _learn_guids(self, ids: Iterable[int]) -> None:
        for schema_id in ids:
            if schema_id not in self._named and (schema := self.schema(schema_id)) is not None:
                # the lowest id counts, if a merge of two copies brought in a schema twice
                self._guids.setdefault(schema.guid, schema_id)
                self._named.add(schema_id)

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        """Return every version that a subject has or had, oldest first."""
        stored_subject, versions = self._subject(subject_folder(subject))
        return versions if stored_subject == subject else ()

    def versions_of(
        self, subjects: Collection[str] | None = None
    ) -> dict[str, tuple[StoredVersion, ...]]:
        """Return the versions that some subjects, or all of them, have or had.

        One listing of files serves all subjects.
        """
        folders = None if subjects is None else {*map(subject_folder, subjects)}
        names: dict[str, list[str]] = {}
        with unreachable(self._store):
            for file in self._store.files("subjects", recursive=True):
                folder, _, name = file.name.removeprefix("subjects/").partition("/")
                if folders is None or folder in folders:
                    names.setdefault(folder, []).append(name)
            if not names:
                self._require()
        subjects_found = in_parallel(lambda folder: self._subject(folder, names[folder]), names)
        return {subject: versions for subject, versions in subjects_found if subject is not None}

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        """Return the places where a schema is or was registered, existing ones first."""
        with self._scan_lock:
            self._scan()
            folders = tuple(self._homes.get(schema_id, ()))
        return in_order(
            (version.deleted, subject, version.version)
            for subject, versions in map(self._subject, folders)
            if subject is not None
            for version in versions
            if version.schema_id == schema_id
        )

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        self.add_versions({subject: (version, schema_id)})

    def add_versions(self, versions: Mapping[str, tuple[int, int]]) -> None:
        """Write one version of each subject, given as version number and schema id, all at once."""

        def write(subject: str) -> None:
            version, schema_id = versions[subject]
            content = {"subject": subject, "version": version, "id": schema_id}
            name = f"subjects/{subject_folder(subject)}/{version}.json"
            if not create(self._store, name, content, durable=self._durable):
                raise FileExistsError(
                    f"version {version} was written by a process without the lock"
                )

        with unreachable(self._store):
            in_parallel(write, versions)
            if versions:
                homes = [(subject_folder(subject), id) for subject, (_, id) in versions.items()]
                self._announce(homes)

    def delete_version(self, subject: str, *, version: int) -> None:
        name = f"subjects/{subject_folder(subject)}/{version}.deleted"
        with unreachable(self._store):
            mark = {"subject": subject, "version": version}
            create(self._store, name, mark, durable=self._durable)

    def level(self, subject: str | None) -> Level | None:
        """Return the compatibility level set for a subject, or for all subjects if it is None."""
        name = _config(subject)
        with unreachable(self._store):
            content = read_json(self._store, name)
        if content is None:
            return None
        try:
            return Level(content["compatibility"])
        except (KeyError, ValueError):
            raise damaged(self._store, name) from None

    def set_level(self, subject: str | None, level: Level | None) -> None:
        name = _config(subject)
        subject_entry = {} if subject is None else {"subject": subject}
        with unreachable(self._store):
            if level is None:
                self._store.remove(name)
            else:
                content = {**subject_entry, "compatibility": str(level)}
                self._store.write(name, encoded(content), durable=self._durable)

    def _announce(self, homes: Iterable[tuple[str, int]]) -> None:
        """Signal new subjects of ids to other readers, and record them here without a scan."""
        word = secrets.token_bytes(16)
        with self._scan_lock:
            current = self._word() == self._scanned_word
            self._store.write(".changed", word, durable=False)
            if current:
                for folder, schema_id in homes:
                    self._homes.setdefault(schema_id, set()).add(folder)
                self._scanned_word = word

    def _word(self) -> bytes:
        try:
            return self._store.read(".changed")
        except OSError:
            return b""

    def _require(self) -> None:
        if not self._store.exists():
            raise FileNotFoundError(self._store.address)

    def _files(self, folder: str) -> list[str]:
        with unreachable(self._store):
            names = [file.name.rpartition("/")[2] for file in self._store.files(folder)]
            if not names:
                self._require()
            return names

    def _folders(self) -> list[str]:
        with unreachable(self._store):
            folders = self._store.folders("subjects")
            if not folders:
                self._require()
            return folders

    def _subject(
        self, folder: str, names: Iterable[str] | None = None
    ) -> tuple[str | None, tuple[StoredVersion, ...]]:
        """Return a subject's name and versions, from its folder or from the given file names."""
        if names is None:
            names = self._files(f"subjects/{folder}")
        matches = [match for match in map(_VERSION.fullmatch, names) if match]
        deleted = {int(match[1]) for match in matches if match[2] == "deleted"}
        subject, versions = None, []
        for number in sorted(int(match[1]) for match in matches if match[2] == "json"):
            subject, schema_id = self._version_file(folder, number)
            versions.append(StoredVersion(number, schema_id, number in deleted))
        return subject, tuple(versions)

    def _version_file(self, folder: str, number: int) -> tuple[str, int]:
        if (folder, number) not in self._version_files:
            name = f"subjects/{folder}/{number}.json"
            with unreachable(self._store):
                content = read_json(self._store, name) or {}
            subject, schema_id = content.get("subject"), content.get("id")
            # a folder that was copied or renamed by hand must not count as the subject in its files
            if not isinstance(subject, str) or subject_folder(subject) != folder:
                raise damaged(self._store, name)
            if not isinstance(schema_id, int) or content.get("version") != number:
                raise damaged(self._store, name)
            self._version_files[folder, number] = (subject, schema_id)
        return self._version_files[folder, number]

    def _scan(self) -> None:
        """Refresh the subjects of each id, after a write or after some time.

        Every version added through this class changes `.changed`. Versions added by git or an
        editor do not, and are found by a scan after a while: later for a large registry than for a
        small one.
        """
        word, started = self._word(), time.monotonic()
        if word == self._scanned_word and started < self._scan_again_at:
            return
        homes: dict[int, set[str]] = {}
        for folder in self._folders():
            for version in self._subject(folder)[1]:
                homes.setdefault(version.schema_id, set()).add(folder)
        self._homes, self._scanned_word = homes, word
        ended = time.monotonic()
        self._scan_again_at = ended + max(_RESCAN_SECONDS, 20 * (ended - started))


def id_name(schema_id: int) -> str:
    """Return the file name of a schema."""
    return f"ids/{schema_id:08d}.json"


def _config(subject: str | None) -> str:
    return "config.json" if subject is None else f"subjects/{subject_folder(subject)}/config.json"


def _schema_from(content: dict[str, Any], schema_id: int) -> StoredSchema | None:
    try:
        lines = content["schema"]
        if content["id"] != schema_id or not isinstance(lines, list):
            raise ValueError
        return StoredSchema(
            format=Format(content["format"]),
            text="\n".join(lines),
            references=tuple(Reference.of(reference) for reference in content["references"]),
        )
    except (KeyError, TypeError, ValueError, InvalidSchemaError):
        return None


# The rules of subjects, versions, ids and compatibility, as in Confluent's registry.


class FileRegistry:
    """A registry in a folder that several processes may use at the same time.

    Each step of a registration is on the disk before the next begins, so that an id is never given
    out twice, even after a power cut. With `durable=False` the operating system decides when to
    write.
    """

    def __init__(self, path: Path | str, *, durable: bool = True) -> None:
        self._store = _FileStore(at(path), durable=durable)
        self._compiled: dict[int, WriterSchema] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, with every place where it is or was registered."""
        # places are read every time, because a schema can be registered under another subject later
        return replace(self._placeless(schema_id), subjects=self._store.places(schema_id))

    def by_id_now(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, whose places are read every time."""
        return self.by_id(schema_id)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return the schema with a GUID, as returned by `guid_of`."""
        schema_id = self._store.id_of(guid)
        if schema_id is None:
            raise not_found("schema with GUID", str(guid))
        return self.by_id(schema_id)

    def guid_of(self, schema_id: int) -> UUID:
        """Return the GUID of the schema with this id."""
        return self._stored(schema_id).guid

    def latest(self, subject: str) -> WriterSchema:
        """Return the newest version of a subject."""
        live = self._live(subject)
        if not live:
            raise not_found("subject", subject)
        return self.by_id(live[-1].schema_id)

    def version(self, subject: str, version: int) -> WriterSchema:
        """Return one version of a subject, unless it was deleted."""
        return self.by_id(self._found(subject, version).schema_id)

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject that were not deleted, oldest first."""
        return tuple(version.version for version in self._live(subject))

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects with a version that was not deleted, sorted."""
        all_versions = self._store.versions_of().items()
        return tuple(
            sorted(
                subject
                for subject, versions in all_versions
                if not all(version.deleted for version in versions)
            )
        )

    def text(self, schema_id: int) -> str:
        """Return the schema's text as it was registered."""
        return self._stored(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """Return the references of a schema, as they were registered."""
        return self._stored(schema_id).references

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; return the id.

        A schema that another subject has keeps its id.
        """
        if not subject:
            raise InvalidSchemaError(
                "a subject needs a name",
                where="subject",
                evidence="the name is empty",
                next_step="name the subject, for example <topic>-value",
            )
        with self._store.exclusive():
            schema = self._schema(text, format, references)
            compiled = self._compile(schema)
            for version in self._live(subject):
                if self._stored(version.schema_id) == schema:
                    return version.schema_id
            if incompatibilities := self._problems(subject, schema, compiled):
                more = (
                    f"; and {len(incompatibilities) - 3} more" if len(incompatibilities) > 3 else ""
                )
                raise IncompatibleSchemaError(
                    "the new version is not compatible",
                    where=f"subject {printable(subject)}, level {self.compatibility(subject)}",
                    evidence="; ".join(map(printable, incompatibilities[:3])) + more,
                    next_step="change the schema, register it under a new subject, or relax the "
                    "level",
                )
            schema_id = self._store.id_of(schema.guid)
            if schema_id is None:
                schema_id = self._store.add_schema(schema)
            last = max((version.version for version in self._store.versions(subject)), default=0)
            self._store.add_version(subject, version=last + 1, schema_id=schema_id)
            return schema_id

    def register_all(self, texts: Mapping[str, str], *, format: Format) -> dict[str, WriterSchema]:
        """Make each text the newest version of its subject, with a few requests for all.

        Compatibility is not checked. A subject whose newest version is this text keeps it.
        """
        with self._store.exclusive():
            schemas = {subject: self._schema(text, format, ()) for subject, text in texts.items()}
            for schema in schemas.values():
                self._compile(schema)
            ids = self._store.add_schemas(schemas.values())
            versions_by_subject = self._store.versions_of(texts)
            new: dict[str, tuple[int, int]] = {}
            for subject, schema in schemas.items():
                versions = versions_by_subject.get(subject, ())
                live = [version for version in versions if not version.deleted]
                if not live or live[-1].schema_id != ids[schema]:
                    last = max((version.version for version in versions), default=0)
                    new[subject] = last + 1, ids[schema]
            self._store.add_versions(new)
        return self.newest(texts)

    def newest(self, subjects: Collection[str]) -> dict[str, WriterSchema]:
        """Return the newest version of each subject that has one, with one listing for all."""
        if not subjects:
            return {}
        newest: dict[str, StoredVersion] = {}
        for subject, versions in self._store.versions_of(subjects).items():
            live = [version for version in versions if not version.deleted]
            if live:
                newest[subject] = live[-1]
        in_parallel(self._store.schema, {stored.schema_id for stored in newest.values()})
        return {
            subject: replace(
                self._placeless(stored.schema_id),
                subjects=(SubjectVersion(subject, stored.version),),
            )
            for subject, stored in newest.items()
        }

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Return the reasons for which `register` would refuse this schema as incompatible."""
        schema = self._schema(text, format, references)
        return self._problems(subject, schema, self._compile(schema))

    def compatibility(self, subject: str | None = None) -> Level:
        """Return the level of a subject; without a subject, the level for all."""
        subject_level = self._store.level(subject) if subject is not None else None
        return subject_level or self._store.level(None) or Level.BACKWARD

    def set_compatibility(self, subject: str | None, level: Level | str | None) -> None:
        """Set the level of a subject, or of all if it is None; no level restores the default."""
        chosen = Level.of(level) if isinstance(level, str) else level
        with self._store.exclusive():
            self._store.set_level(subject, chosen)

    def delete_version(self, subject: str, version: int) -> None:
        """Delete a version of a subject; its id, and data written with it, stay readable."""
        with self._store.exclusive():
            self._found(subject, version)
            self._store.delete_version(subject, version=version)

    def delete_subject(self, subject: str) -> tuple[int, ...]:
        """Delete every version and the level of a subject; return the deleted versions."""
        with self._store.exclusive():
            live = self.versions(subject)
            if not live:
                raise not_found("subject", subject)
            for version in live:
                self._store.delete_version(subject, version=version)
            self._store.set_level(subject, None)
            return live

    def _placeless(self, schema_id: int) -> WriterSchema:
        compiled = self._compiled.get(schema_id)
        if compiled is None:
            schema = self._stored(schema_id)
            compiled = self._compile(schema).writer(schema_id, schema.format)
            self._compiled[schema_id] = compiled
        return compiled

    def _live(self, subject: str) -> tuple[StoredVersion, ...]:
        return tuple(version for version in self._store.versions(subject) if not version.deleted)

    def _found(self, subject: str, version: int) -> StoredVersion:
        for candidate in self._live(subject):
            if candidate.version == version:
                return candidate
        raise not_found(f"version {version} of subject", subject)

    def _stored(self, schema_id: int) -> StoredSchema:
        schema = self._store.schema(schema_id)
        if schema is None:
            raise not_found("schema with id", str(schema_id))
        return schema

    def _schema(self, text: str, format: Format, references: References) -> StoredSchema:
        """Return the schema with pinned references: `latest` must not change under a fixed id."""
        pinned = []
        for reference in map(Reference.of, references):
            live = self.versions(reference.subject)
            version = live[-1] if live and reference.version == LATEST else reference.version
            if version not in live:
                raise dangling(reference)
            pinned.append(replace(reference, version=version))
        return StoredSchema(format=format, text=text, references=tuple(pinned))

    def _compile(self, schema: StoredSchema) -> Compiled:
        imports = gather(schema.references, fetch=self._fetch)
        return compile_schema(schema.text, format=schema.format, imports=imports)

    def _fetch(self, reference: Reference) -> tuple[str, tuple[Reference, ...]]:
        # deleted versions count, because schemas that were accepted with them must stay readable
        for version in self._store.versions(reference.subject):
            if version.version == reference.version:
                schema = self._stored(version.schema_id)
                return schema.text, schema.references
        raise dangling(reference)

    def _problems(self, subject: str, schema: StoredSchema, compiled: Compiled) -> list[str]:
        level = self.compatibility(subject)
        live = self._live(subject) if level is not Level.NONE else ()
        history = []
        for version in live if level.transitive else live[-1:]:
            old = self._placeless(version.schema_id)
            history.append(Version(version.version, old.format, old.body))
        return problems(compiled.body, format=schema.format, history=history, level=level)
