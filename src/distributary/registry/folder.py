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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributary.errors import InvalidSchemaError, RegistryUnavailableError
from distributary.model.names import folder_name, printable
from distributary.model.record import Format, SubjectVersion
from distributary.registry.base import Reference
from distributary.registry.compatibility.levels import Level
from distributary.registry.local import LocalRegistry, StoredSchema, StoredVersion, in_order
from distributary.store.base import Store, at, local_folder

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


ID_FILE = re.compile(r"([0-9]{8,10})\.json")
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.(json|deleted)")
_RESCAN_SECONDS = 1.0


class _FileStore:
    """The folder; what was read once and cannot change is kept in memory."""

    def __init__(self, store: Store, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._schemas: dict[int, StoredSchema] = {}
        self._ids: dict[StoredSchema, int] = {}
        self._version_files: dict[tuple[str, int], tuple[str, int]] = {}
        self._scan_lock = threading.Lock()
        self._homes: dict[int, set[str]] = {}
        self._scanned_word = b""
        self._scan_again_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
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

    def id_of(self, schema: StoredSchema) -> int | None:
        for schema_id in self.ids():
            if (known := self.schema(schema_id)) is not None:
                # the lowest id, where a merge of two copies brought a schema in twice
                self._ids.setdefault(known, schema_id)
        return self._ids.get(schema)

    def add_schema(self, schema: StoredSchema) -> int:
        schema_id = max(self.ids(), default=0)
        while True:
            schema_id += 1
            content = {
                "id": schema_id,
                "format": str(schema.format),
                "references": [asdict(reference) for reference in schema.references],
                "schema": schema.text.split("\n"),
            }
            with unreachable(self._store):
                if create(self._store, id_name(schema_id), content, durable=self._durable):
                    break
        self._schemas[schema_id] = schema
        self._ids[schema] = schema_id
        return schema_id

    def subjects(self) -> tuple[str, ...]:
        found = (self._subject(folder) for folder in self._folders())
        return tuple(subject for subject, _ in found if subject is not None)

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        found, versions = self._subject(folder_name(subject))
        return versions if found == subject else ()

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        with self._scan_lock:
            self._scan()
            folders = tuple(self._homes.get(schema_id, ()))
        return in_order(
            (subject, version)
            for subject, versions in map(self._subject, folders)
            if subject is not None
            for version in versions
            if version.schema_id == schema_id
        )

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        content = {"subject": subject, "version": version, "id": schema_id}
        folder = folder_name(subject)
        with unreachable(self._store):
            name = f"subjects/{folder}/{version}.json"
            if not create(self._store, name, content, durable=self._durable):
                raise FileExistsError(f"version {version} was written by somebody without the lock")
            self._announce(folder, schema_id)

    def delete_version(self, subject: str, *, version: int) -> None:
        name = f"subjects/{folder_name(subject)}/{version}.deleted"
        with unreachable(self._store):
            mark = {"subject": subject, "version": version}
            create(self._store, name, mark, durable=self._durable)

    def level(self, subject: str | None) -> Level | None:
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

    def _announce(self, folder: str, schema_id: int) -> None:
        """Tell other readers that an id has a new home; this one learns it without a scan."""
        word = secrets.token_bytes(16)
        with self._scan_lock:
            current = self._word() == self._scanned_word
            self._store.write(".changed", word, durable=False)
            if current:
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

    def _subject(self, folder: str) -> tuple[str | None, tuple[StoredVersion, ...]]:
        """A subject's name and versions, from its folder as it is now."""
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


class FileRegistry(LocalRegistry):
    """A registry in a folder that several processes may use at the same time.

    Every step of a registration is on the disk before the next, so that an id is never given out
    twice, even after a power cut; `durable=False` leaves that to the operating system.
    """

    def __init__(self, path: Path | str, *, durable: bool = True) -> None:
        super().__init__(_FileStore(at(path), durable=durable))
