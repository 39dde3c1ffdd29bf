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
from pathlib import Path
from typing import Any

from distributary.errors import InvalidSchemaError, RegistryUnavailableError
from distributary.model.names import folder_name, printable
from distributary.model.record import Format, SubjectVersion
from distributary.registry.base import Reference
from distributary.registry.compatibility.levels import Level
from distributary.registry.local import LocalRegistry, StoredSchema, StoredVersion, in_order
from distributary.store import disk

# The registry's own files, and the errors of a folder that cannot be used.


@contextmanager
def unreachable(root: Path) -> Iterator[None]:
    """Turns what the file system says into the registry's own error: try again, lose nothing."""
    try:
        yield
    except OSError as error:
        what, step = "fails", "check the disk and the permissions of the folder"
        if isinstance(error, FileNotFoundError) and not root.exists():
            what = "does not exist"
            step = "check registry.path, or register a first schema to create the folder"
        raise RegistryUnavailableError(
            f"the registry's folder {what}",
            where=printable(str(root)),
            evidence=printable(f"{type(error).__name__}: {error}"),
            next_step=step,
        ) from error


def damaged(path: Path) -> RegistryUnavailableError:
    """A file of the registry holds something else than was written: nobody's record is at fault."""
    return RegistryUnavailableError(
        "a file of the registry is damaged",
        where=printable(str(path)),
        evidence="it is not what the registry writes: edited by hand, or a merge left its marks",
        next_step="restore the file, for example with git checkout",
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when there is no such file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def ensure_folder(path: Path, *, durable: bool = True) -> None:
    """Make a folder in an existing one, unless it is there."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    if durable:
        disk.sync(path.parent)


def create(path: Path, content: dict[str, Any], *, durable: bool = True) -> bool:
    """Write a new file that never changes; False when the name is taken."""
    try:
        return disk.create(path, _encoded(content), durable=durable) is not None
    except OSError:
        # a file system without links: the caller's lock is what keeps others out here
        if path.exists():
            return False
        replace_file(path, content, durable=durable)
        return True


def replace_file(path: Path, content: dict[str, Any] | bytes, *, durable: bool = True) -> None:
    """Write a file, or put another in its place, in one step."""
    data = content if isinstance(content, bytes) else _encoded(content)
    disk.replace(path, data, durable=durable)


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: legal in a Python string and as an escape, not as UTF-8
        return (json.dumps(content, indent=2) + "\n").encode()


_ID = re.compile(r"([0-9]{8,10})\.json")
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.(json|deleted)")
_RESCAN_SECONDS = 1.0


class _FileStore:
    """The folder; what was read once and cannot change is kept in memory."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._root = path
        self._durable = durable
        self._ids_folder = path / "ids"
        self._subjects_folder = path / "subjects"
        self._schemas: dict[int, StoredSchema] = {}
        self._ids: dict[StoredSchema, int] = {}
        self._version_files: dict[tuple[str, int], tuple[str, int]] = {}
        self._scan_lock = threading.Lock()
        self._homes: dict[int, set[str]] = {}
        self._scanned_word = b""
        self._scan_again_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with unreachable(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            ensure_folder(self._ids_folder, durable=self._durable)
            ensure_folder(self._subjects_folder, durable=self._durable)
            ignore = self._root / ".gitignore"
            if not ignore.exists():
                replace_file(ignore, b".lock\n.changed\n.new-*\n", durable=False)
            descriptor = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with unreachable(self._root):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # let go by name: a process forked meanwhile holds the same lock by its own descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def schema(self, schema_id: int) -> StoredSchema | None:
        # a new one is seen at once, whoever wrote it
        if schema_id not in self._schemas:
            path = self._ids_folder / f"{schema_id:08d}.json"
            with unreachable(self._root):
                content = read_json(path)
                if content is None:
                    os.stat(self._root)
                    return None
            self._schemas[schema_id] = _schema_from(path, content, schema_id)
        return self._schemas[schema_id]

    def ids(self) -> list[int]:
        names = map(_ID.fullmatch, self._listed(self._ids_folder))
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
                "references": [r.as_dict() for r in schema.references],
                "schema": schema.text.split("\n"),
            }
            with unreachable(self._root):
                path = self._ids_folder / f"{schema_id:08d}.json"
                if create(path, content, durable=self._durable):
                    break
        self._schemas[schema_id] = schema
        self._ids[schema] = schema_id
        return schema_id

    def subjects(self) -> tuple[str, ...]:
        found = (self._subject(folder) for folder in self._listed(self._subjects_folder))
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
        folder = self._subjects_folder / folder_name(subject)
        with unreachable(self._root):
            ensure_folder(folder, durable=self._durable)
            if not create(folder / f"{version}.json", content, durable=self._durable):
                raise FileExistsError(f"version {version} was written by somebody without the lock")
            self._announce(folder.name, schema_id)

    def delete_version(self, subject: str, *, version: int) -> None:
        folder = self._subjects_folder / folder_name(subject)
        with unreachable(self._root):
            mark = {"subject": subject, "version": version}
            create(folder / f"{version}.deleted", mark, durable=self._durable)

    def level(self, subject: str | None) -> Level | None:
        path = self._config(subject)
        with unreachable(self._root):
            content = read_json(path)
        if content is None:
            return None
        try:
            return Level(content["compatibility"])
        except (KeyError, ValueError):
            raise damaged(path) from None

    def set_level(self, subject: str | None, level: Level | None) -> None:
        path = self._config(subject)
        named = {} if subject is None else {"subject": subject}
        with unreachable(self._root):
            if level is None:
                path.unlink(missing_ok=True)
            else:
                ensure_folder(path.parent, durable=self._durable)
                content = {**named, "compatibility": str(level)}
                replace_file(path, content, durable=self._durable)

    def _config(self, subject: str | None) -> Path:
        folder = self._root if subject is None else self._subjects_folder / folder_name(subject)
        return folder / "config.json"

    def _announce(self, folder: str, schema_id: int) -> None:
        """Tell other readers that an id has a new home; this one learns it without a scan."""
        word = secrets.token_bytes(16)
        with self._scan_lock:
            current = self._word() == self._scanned_word
            replace_file(self._root / ".changed", word, durable=False)
            if current:
                self._homes.setdefault(schema_id, set()).add(folder)
                self._scanned_word = word

    def _word(self) -> bytes:
        try:
            return (self._root / ".changed").read_bytes()
        except OSError:
            return b""

    def _listed(self, folder: Path, also: type[OSError] = FileNotFoundError) -> list[str]:
        with unreachable(self._root):
            try:
                return os.listdir(folder)
            except (FileNotFoundError, also):
                os.stat(self._root)
                return []

    def _subject(self, folder: str) -> tuple[str | None, tuple[StoredVersion, ...]]:
        """A subject's name and versions, from its folder as it is now."""
        names = self._listed(self._subjects_folder / folder, NotADirectoryError)
        found = [name for name in map(_VERSION.fullmatch, names) if name]
        deleted = {int(name[1]) for name in found if name[2] == "deleted"}
        subject, versions = None, []
        for number in sorted(int(name[1]) for name in found if name[2] == "json"):
            subject, schema_id = self._version_file(folder, number)
            versions.append(StoredVersion(number, schema_id, number in deleted))
        return subject, tuple(versions)

    def _version_file(self, folder: str, number: int) -> tuple[str, int]:
        if (folder, number) not in self._version_files:
            path = self._subjects_folder / folder / f"{number}.json"
            with unreachable(self._root):
                content = read_json(path) or {}
            subject, schema_id = content.get("subject"), content.get("id")
            # a folder that was copied or renamed by hand must not pass for the subject it was
            if not isinstance(subject, str) or folder_name(subject) != folder:
                raise damaged(path)
            if not isinstance(schema_id, int) or content.get("version") != number:
                raise damaged(path)
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
        for folder in self._listed(self._subjects_folder):
            for version in self._subject(folder)[1]:
                homes.setdefault(version.schema_id, set()).add(folder)
        self._homes, self._scanned_word = homes, word
        ended = time.monotonic()
        self._scan_again_at = ended + max(_RESCAN_SECONDS, 20 * (ended - begun))


def _schema_from(path: Path, content: dict[str, Any], schema_id: int) -> StoredSchema:
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
        raise damaged(path) from None


class FileRegistry(LocalRegistry):
    """A registry in a folder that several processes may use at the same time.

    Every step of a registration is on the disk before the next, so that an id is never given out
    twice, even after a power cut; `durable=False` leaves that to the operating system.
    """

    def __init__(self, path: Path | str, *, durable: bool = True) -> None:
        super().__init__(_FileStore(Path(path), durable=durable))
