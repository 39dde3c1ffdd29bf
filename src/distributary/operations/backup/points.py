"""The restore points of a backup, and their files.

<backup>/points/<id>.json      a restore point; written last, so that an existing one is complete
<backup>/points/<id>.tar.gz    its documents: manifests, names, cards, parked entries
<backup>/lake/<table>/         files of a table and its log; restore points share them
<backup>/parked/<pipeline>/    files of parked batches

Files of tables and of logs are only added. A table that was created again under its old name, or
was restored and then changed differently, gets a folder of its own: `<table>~2`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from distributary.errors import DistributaryError, ErrorCode
from distributary.model.table import is_below
from distributary.operations.backup.state import BackedUpTable, FileSize, ParkedState, PipelineState
from distributary.store.base import Store, reaching

FORMAT = 1
POINTS = "points"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of a restore point, and its folder in the backup."""

    state: BackedUpTable
    stored: str


@dataclass(frozen=True, slots=True)
class Point:
    """One restore point."""

    id: str
    taken_at: str
    lake: str
    """The address of the lake that was backed up."""
    pipelines: tuple[PipelineState, ...]
    checkpoints: Mapping[str, str]
    """The paths of checkpoints below the lake; empty for a checkpoint outside of it."""
    tables: tuple[StoredTable, ...]
    parked: tuple[ParkedState, ...]
    documents: int
    sha256: str
    """The digest of the archive of documents."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Files and bytes of the whole state, and the number of those that this backup copied."""

    def to_json(self) -> bytes:
        """Return the document, with a digest of itself."""
        data: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        data["digest"] = _digest(data)
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Point:
        """Read a document. Raises ValueError, KeyError or TypeError if it is damaged."""
        data = json.loads(text)
        if data.pop("digest") != _digest(data) or data.pop("format") != FORMAT:
            raise ValueError("its digest does not match")
        data["pipelines"] = tuple(PipelineState(**state) for state in data["pipelines"])
        data["tables"] = tuple(
            StoredTable(_table(item["state"]), item["stored"]) for item in data["tables"]
        )
        data["parked"] = tuple(
            ParkedState(**{**item, "files": _files(item["files"])}) for item in data["parked"]
        )
        point = cls(**data)
        paths = [point.id, *(t.stored for t in point.tables), *(p.place for p in point.parked)]
        paths += [t.state.folder for t in point.tables]
        paths += [path for path in point.checkpoints.values() if path]
        if not all(map(is_below, paths)):
            raise ValueError("a path leads out of its folder")
        return point


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _table(data: Mapping[str, Any]) -> BackedUpTable:
    return BackedUpTable(**{**data, "files": _files(data["files"])})


def _files(data: list[dict[str, Any]]) -> tuple[FileSize, ...]:
    files = tuple(FileSize(**file) for file in data)
    if not all(is_below(file.path) for file in files):
        raise ValueError("a path leads out of its folder")
    return files


def point_ids(backup: Store) -> list[str]:
    """Return the restore points of a backup, the oldest first."""
    with reaching(backup.address):
        names = [file.name.rpartition("/")[2] for file in backup.files(POINTS)]
    ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(filter(_ID.fullmatch, ids))


def read_point(backup: Store, id: str) -> Point:
    """Read a restore point. Raises BACKUP_INVALID."""
    name = f"{POINTS}/{id}.json"
    try:
        with reaching(backup.address):
            return Point.from_json(backup.read(name))
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid(backup, name, f"{type(error).__name__}: {error}") from error


def write_point(backup: Store, point: Point, documents: bytes) -> None:
    """Write a restore point: its documents, then itself."""
    with reaching(backup.address):
        backup.write(_archive(point.id), documents)
        backup.write(f"{POINTS}/{point.id}.json", point.to_json())


def packed_documents(documents: Mapping[str, bytes]) -> bytes:
    """Put documents into one archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=6) as archive:
        for name, data in sorted(documents.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), _MODE
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def read_documents(backup: Store, point: Point) -> dict[str, bytes]:
    """Read the documents of a restore point. Raises BACKUP_INVALID."""
    name = _archive(point.id)
    try:
        with reaching(backup.address):
            data = backup.read(name)
        if hashlib.sha256(data).hexdigest() != point.sha256:
            raise ValueError("its digest does not match")
        documents: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or not is_below(member.name):
                    raise ValueError("a path leads out of its folder")
                documents[member.name] = content.read()
        return documents
    except (ValueError, tarfile.TarError) as error:
        raise _invalid(backup, name, str(error)) from error


def _archive(id: str) -> str:
    return f"{POINTS}/{id}.tar.gz"


def _invalid(backup: Store, name: str, evidence: str) -> DistributaryError:
    return DistributaryError(
        "a restore point cannot be read",
        code=ErrorCode.BACKUP_INVALID,
        where=f"{backup.address}/{name}",
        evidence=evidence,
        next_step="choose another one with --at; `distributary restore BACKUP --list` names them",
    )
