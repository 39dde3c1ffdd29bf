"""A registry in a folder, fit for git: one small JSON file per fact, never changed once written.

<path>/config.json                          the level for all subjects
<path>/ids/00000042.json                    id, format, references, the text line by line
<path>/subjects/<subject>/3.json            version 3: which id
<path>/subjects/<subject>/3.deleted         ...was deleted
<path>/subjects/<subject>/config.json       the subject's own level
<path>/.lock                                writers take turns; readers need no lock
<path>/.changed                             a new word after every version: an id has a new home
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
    RegistryUnavailableError,
)
from distributary.model.names import folder_name, printable
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
from distributary.store.base import Store, at, local_folder

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# The registry's own files, and the errors of a folder that cannot be used.


@contextmanager
def unreachable(store: Store) -> Iterator[None]:
    """Turns what a file system or a bucket says into the registry's own error: try again."""
    try:
        yield
    except OSError as error:
        what, step = "fails", "check the disk and the permissions of the folder"
        if isinstance(error, FileNotFoundError) and not store.exists():
            what = "does not exist"
            step = "check registry.path, or register a first schema to create the folder"
        raise RegistryUnavailableError(
            f"the registry's folder {what}",
            where=printable(store.address),
            evidence=printable(f"{type(error).__name__}: {error}"),
            next_step=step,
        ) from error


def damaged(store: Store, name: str) -> RegistryUnavailableError:
    """A file of the registry holds something else than was written: nobody's record is at fault."""
    return RegistryUnavailableError(
        "a file of the registry is damaged",
        where=printable(f"{store.address}/{name}"),
        evidence="it is not what the registry writes: edited by hand, or a merge left its marks",
        next_step="restore the file, for example with git checkout",
    )


def read_json(store: Store, name: str) -> dict[str, Any] | None:
    """A JSON object, or None when there is no such file."""
    try:
        content = json.loads(store.read(name))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise damaged(store, name)
    return content


def create(store: Store, name: str, content: dict[str, Any], *, durable: bool = True) -> bool:
    """Write a new file that never changes; False when the name is taken."""
    try:
        return store.create(name, encoded(content), durable=durable) is not None
    except OSError:
        # a file system without links: the caller's lock is what keeps others out here
        if store.look(name) is not None:
            return False
        store.write(name, encoded(content), durable=durable)
        return True


def encoded(content: dict[str, Any]) -> bytes:
    """An object as a file holds it."""
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: legal in a Python string and as an escape, not as UTF-8
        return (json.dumps(content, indent=2) + "\n").encode()


_THREADS = 16


def in_parallel(work: Callable[[Item], Answer], items: Collection[Item]) -> list[Answer]:
    """Do a piece of work for each item, several at a time: a disk's sync and a bucket take long."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


# What is kept, and how it lies in the folder. Ids and versions are never changed or reused.

_GUIDS = uuid5(NAMESPACE_DNS, "schemas.distributary")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema as it was registered; two that are equal share one id."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> UUID:
        """A name that every folder gives to the same content; Confluent's servers give others."""
        references = [[r.name, r.subject, r.version] for r in self.references]
        return uuid5(_GUIDS, json.dumps([self.format, self.text, references]))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a subject; a deleted one keeps its number and stays readable by id."""

    version: int
    schema_id: int
    deleted: bool = False


ID_FILE = re.compile(r"([0-9]{8,10})\.json")
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.(json|deleted)")
_RESCAN_SECONDS = 1.0


class _FileStore:
    """The folder; what was read once and cannot change is kept in memory."""

    def __init__(self, store: Store, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._schemas: dict[int, StoredSchema] = {}
        self._guids: dict[UUID, int] = {}
        self._named: set[int] = set()
        """The ids whose GUIDs are known."""
        self._version_files: dict[tuple[str, int], tuple[str, int]] = {}
        self._scan_lock = threading.Lock()
        self._homes: dict[int, set[str]] = {}
        self._scanned_word = b""
        self._scan_again_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds off every other writer, of any thread or process; not to be entered twice."""
        folder = local_folder(self._store.address)
        with unreachable(self._store):
            if self._store.look(".gitignore") is None:
                self._store.write(".gitignore", b".lock\n.changed\n.new-*\n", durable=False)
            if folder is not None:
                descriptor = os.open(f"{folder}/.lock", os.O_RDWR | os.O_CREAT, 0o666)
        if folder is None:
            # in a bucket two writers meet where a file is created, and one of them loses
            yield
            return
        try:
            with unreachable(self._store):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # let go by name: a process forked meanwhile holds the same lock by its own descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def schema(self, schema_id: int) -> StoredSchema | None:
        # a new one is seen at once, whoever wrote it
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
        """The id of the schema with this content; asked inside `exclusive` by who adds one."""
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
        """Write a schema under an id; False when the id is taken."""
        content = {
            "id": schema_id,
            "format": str(schema.format),
            "references": [asdict(reference) for reference in schema.references],
            "schema": schema.text.split("\n"),
        }
        with unreachable(self._store):
            return create(self._store, id_name(schema_id), content, durable=self._durable)

    def add_schemas(self, schemas: Iterable[StoredSchema]) -> dict[StoredSchema, int]:
        """Return the id of each schema; those that are new get one, all written at once."""
        wanted = list(dict.fromkeys(schemas))
        if any(schema.guid not in self._guids for schema in wanted):
            ids = self.ids()
            in_parallel(self.schema, [each for each in ids if each not in self._named])
            self._learn_guids(ids)
            new = [schema for schema in wanted if schema.guid not in self._guids]
            first = max(ids, default=0) + 1
            numbered = list(enumerate(new, first))
            written = in_parallel(lambda pair: self._write_schema(*pair), numbered)
            for (schema_id, schema), is_ours in zip(numbered, written, strict=True):
                # in a bucket another writer may have been faster: then the next free id is taken
                given = schema_id if is_ours else self.add_schema(schema)
                self._schemas[given] = schema
                self._guids[schema.guid] = given
                self._named.add(given)
        return {schema: self._guids[schema.guid] for schema in wanted}

    def _learn_guids(self, ids: Iterable[int]) -> None:
        for schema_id in ids:
            if schema_id not in self._named and (known := self.schema(schema_id)) is not None:
                # the lowest id, where a merge of two copies brought a schema in twice
                self._guids.setdefault(known.guid, schema_id)
                self._named.add(schema_id)

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        """Every version that a subject has or had, oldest first."""
        found, versions = self._subject(folder_name(subject))
        return versions if found == subject else ()

    def versions_of(
        self, subjects: Collection[str] | None = None
    ) -> dict[str, tuple[StoredVersion, ...]]:
        """Return the versions that subjects have or had, all of them if none are named.

        One listing serves for all of them.
        """
        folders = None if subjects is None else {*map(folder_name, subjects)}
        names: dict[str, list[str]] = {}
        with unreachable(self._store):
            for file in self._store.files("subjects", recursive=True):
                folder, _, name = file.name.removeprefix("subjects/").partition("/")
                if folders is None or folder in folders:
                    names.setdefault(folder, []).append(name)
            if not names:
                self._require()
        found = in_parallel(lambda folder: self._subject(folder, names[folder]), names)
        return {subject: versions for subject, versions in found if subject is not None}

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
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
        """Write a version of each subject, which is the schema of an id: all at once."""

        def write(subject: str) -> None:
            version, schema_id = versions[subject]
            content = {"subject": subject, "version": version, "id": schema_id}
            name = f"subjects/{folder_name(subject)}/{version}.json"
            if not create(self._store, name, content, durable=self._durable):
                raise FileExistsError(f"version {version} was written by somebody without the lock")

        with unreachable(self._store):
            in_parallel(write, versions)
            if versions:
                homes = [(folder_name(subject), id) for subject, (_, id) in versions.items()]
                self._announce(homes)

    def delete_version(self, subject: str, *, version: int) -> None:
        name = f"subjects/{folder_name(subject)}/{version}.deleted"
        with unreachable(self._store):
            mark = {"subject": subject, "version": version}
            create(self._store, name, mark, durable=self._durable)

    def level(self, subject: str | None) -> Level | None:
        """The compatibility level set for a subject, or for all when it is None."""
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
        named = {} if subject is None else {"subject": subject}
        with unreachable(self._store):
            if level is None:
                self._store.remove(name)
            else:
                content = {**named, "compatibility": str(level)}
                self._store.write(name, encoded(content), durable=self._durable)

    def _announce(self, homes: Iterable[tuple[str, int]]) -> None:
        """Tell other readers that ids have new homes; this one learns them without a scan."""
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
            found = [file.name.rpartition("/")[2] for file in self._store.files(folder)]
            if not found:
                self._require()
            return found

    def _folders(self) -> list[str]:
        with unreachable(self._store):
            found = self._store.folders("subjects")
            if not found:
                self._require()
            return found

    def _subject(
        self, folder: str, names: Iterable[str] | None = None
    ) -> tuple[str | None, tuple[StoredVersion, ...]]:
        """A subject's name and versions, from its folder as it is now, or from its files' names."""
        if names is None:
            names = self._files(f"subjects/{folder}")
        found = [name for name in map(_VERSION.fullmatch, names) if name]
        deleted = {int(name[1]) for name in found if name[2] == "deleted"}
        subject, versions = None, []
        for number in sorted(int(name[1]) for name in found if name[2] == "json"):
            subject, schema_id = self._version_file(folder, number)
            versions.append(StoredVersion(number, schema_id, number in deleted))
        return subject, tuple(versions)

    def _version_file(self, folder: str, number: int) -> tuple[str, int]:
        if (folder, number) not in self._version_files:
            name = f"subjects/{folder}/{number}.json"
            with unreachable(self._store):
                content = read_json(self._store, name) or {}
            subject, schema_id = content.get("subject"), content.get("id")
            # a folder that was copied or renamed by hand must not pass for the subject it was
            if not isinstance(subject, str) or folder_name(subject) != folder:
                raise damaged(self._store, name)
            if not isinstance(schema_id, int) or content.get("version") != number:
                raise damaged(self._store, name)
            self._version_files[folder, number] = (subject, schema_id)
        return self._version_files[folder, number]

    def _scan(self) -> None:
        """Learn which subjects each id is in, when something was written or some time has passed.

        Every version that is added here changes the word. What git or an editor adds does not, and
        is found by looking again after a while, longer for a large registry than for a small one.
        """
        word, begun = self._word(), time.monotonic()
        if word == self._scanned_word and begun < self._scan_again_at:
            return
        homes: dict[int, set[str]] = {}
        for folder in self._folders():
            for version in self._subject(folder)[1]:
                homes.setdefault(version.schema_id, set()).add(folder)
        self._homes, self._scanned_word = homes, word
        ended = time.monotonic()
        self._scan_again_at = ended + max(_RESCAN_SECONDS, 20 * (ended - begun))


def id_name(schema_id: int) -> str:
    """The file of a schema."""
    return f"ids/{schema_id:08d}.json"


def _config(subject: str | None) -> str:
    return "config.json" if subject is None else f"subjects/{folder_name(subject)}/config.json"


def _schema_from(content: dict[str, Any], schema_id: int) -> StoredSchema | None:
    try:
        lines = content["schema"]
        if content["id"] != schema_id or not isinstance(lines, list):
            raise ValueError
        return StoredSchema(
            format=Format(content["format"]),
            text="\n".join(lines),
            references=tuple(Reference.of(r) for r in content["references"]),
        )
    except (KeyError, TypeError, ValueError, InvalidSchemaError):
        return None


# The rules: subjects, versions, ids and compatibility with the behaviour of Confluent's registry.


class FileRegistry:
    """A registry in a folder that several processes may use at the same time.

    Every step of a registration is on the disk before the next, so that an id is never given out
    twice, even after a power cut; `durable=False` leaves that to the operating system.
    """

    def __init__(self, path: Path | str, *, durable: bool = True) -> None:
        self._store = _FileStore(at(path), durable=durable)
        self._compiled: dict[int, WriterSchema] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with every place where it is or was registered."""
        # places are asked every time: a schema can be registered under another subject later
        return replace(self._placeless(schema_id), subjects=self._store.places(schema_id))

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID, as `guid_of` gives it."""
        schema_id = self._store.id_of(guid)
        if schema_id is None:
            raise not_found("schema with GUID", str(guid))
        return self.by_id(schema_id)

    def guid_of(self, schema_id: int) -> UUID:
        """The GUID of the schema with this id."""
        return self._stored(schema_id).guid

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject."""
        live = self._live(subject)
        if not live:
            raise not_found("subject", subject)
        return self.by_id(live[-1].schema_id)

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, unless it was deleted."""
        return self.by_id(self._found(subject, version).schema_id)

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject that were not deleted, oldest first."""
        return tuple(v.version for v in self._live(subject))

    def subjects(self) -> tuple[str, ...]:
        """All subjects with a version that was not deleted, sorted."""
        every = self._store.versions_of().items()
        return tuple(sorted(s for s, versions in every if not all(v.deleted for v in versions)))

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it."""
        return self._stored(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """What the schema imports, as it was registered."""
        return self._stored(schema_id).references

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; gives the id.

        A schema that another subject has keeps that subject's id.
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
            if refused := self._problems(subject, schema, compiled):
                more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
                raise IncompatibleSchemaError(
                    "the new version is not compatible",
                    where=f"subject {printable(subject)}, level {self.compatibility(subject)}",
                    evidence="; ".join(map(printable, refused[:3])) + more,
                    next_step="change the schema, register it under a new subject, or relax the "
                    "level",
                )
            schema_id = self._store.id_of(schema.guid)
            if schema_id is None:
                schema_id = self._store.add_schema(schema)
            last = max((v.version for v in self._store.versions(subject)), default=0)
            self._store.add_version(subject, version=last + 1, schema_id=schema_id)
            return schema_id

    def register_all(self, texts: Mapping[str, str], *, format: Format) -> dict[str, WriterSchema]:
        """Make each text the newest version of its subject, with a few requests for all of them.

        No level of compatibility is asked. A subject whose newest version is this text keeps it.
        """
        with self._store.exclusive():
            schemas = {subject: self._schema(text, format, ()) for subject, text in texts.items()}
            for schema in schemas.values():
                self._compile(schema)
            ids = self._store.add_schemas(schemas.values())
            known = self._store.versions_of(texts)
            new: dict[str, tuple[int, int]] = {}
            for subject, schema in schemas.items():
                versions = known.get(subject, ())
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
        found: dict[str, StoredVersion] = {}
        for subject, versions in self._store.versions_of(subjects).items():
            live = [version for version in versions if not version.deleted]
            if live:
                found[subject] = live[-1]
        in_parallel(self._store.schema, {each.schema_id for each in found.values()})
        return {
            subject: replace(
                self._placeless(each.schema_id), subjects=(SubjectVersion(subject, each.version),)
            )
            for subject, each in found.items()
        }

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Why `register` would refuse this schema as incompatible; empty when it would not."""
        schema = self._schema(text, format, references)
        return self._problems(subject, schema, self._compile(schema))

    def compatibility(self, subject: str | None = None) -> Level:
        """The level that holds for a subject; without one, the level that holds for all."""
        own = self._store.level(subject) if subject is not None else None
        return own or self._store.level(None) or Level.BACKWARD

    def set_compatibility(self, subject: str | None, level: Level | str | None) -> None:
        """Set the level of a subject, or of all when it is None; no level: back to the default."""
        chosen = Level.of(level) if isinstance(level, str) else level
        with self._store.exclusive():
            self._store.set_level(subject, chosen)

    def delete_version(self, subject: str, version: int) -> None:
        """Take a version out of the subject; its id can still be read, so old data can too."""
        with self._store.exclusive():
            self._found(subject, version)
            self._store.delete_version(subject, version=version)

    def delete_subject(self, subject: str) -> tuple[int, ...]:
        """Delete every version, and the subject's own compatibility level; gives the versions."""
        with self._store.exclusive():
            live = self.versions(subject)
            if not live:
                raise not_found("subject", subject)
            for version in live:
                self._store.delete_version(subject, version=version)
            self._store.set_level(subject, None)
            return live

    def _placeless(self, schema_id: int) -> WriterSchema:
        known = self._compiled.get(schema_id)
        if known is None:
            schema = self._stored(schema_id)
            known = self._compile(schema).writer(schema_id, schema.format)
            self._compiled[schema_id] = known
        return known

    def _live(self, subject: str) -> tuple[StoredVersion, ...]:
        return tuple(v for v in self._store.versions(subject) if not v.deleted)

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
        """The schema with its references pinned: `latest` must not move under a fixed id."""
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
        # deleted versions count: what was accepted with them has to stay readable
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
