"""The mirror of a Delta table as an Iceberg table over the same Parquet files.

The commits since the last snapshot become one snapshot: the files that they added are listed in a
new manifest, the files that they removed are marked in the manifests that list them. The summary of
each snapshot names the version of the Delta table that it shows, and the commit of that version by
its hash. So a mirror that lags continues where it is, and one that was edited, or whose table has
another history now, is noticed and made again from Delta's log.

Files are written first: manifests, the manifest list, then the metadata, which decides. A process
that is killed leaves the snapshot before, and files that no snapshot names; the sweep removes them.
"""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from distributary.delta.column_merge import fields_in
from distributary.delta.commit import APP, BATCH, PIPELINE, SOURCE, facts_in, lane_of
from distributary.delta.log import FEATURES, DataFile, Snapshot, data_file, in_table, load
from distributary.delta.log_reading import Action, commits_in, read_commit
from distributary.delta.parquet import opened
from distributary.delta.tables import OvertakenError, until_not_overtaken
from distributary.delta.vectors import read_vector
from distributary.iceberg.iceberg_columns import (
    Json,
    iceberg_schema,
    name_mapping,
    partition_fields,
    partitioning,
)
from distributary.iceberg.manifests import (
    DELETED,
    DELETES,
    PATH_ID,
    POSITION_ID,
    ROWS,
    BrokenManifestError,
    added,
    described,
    file_of,
    live_files,
    read_list,
    read_manifest,
    write_list,
    write_manifest,
)
from distributary.iceberg.metadata import (
    KEPT_DOCUMENTS,
    MAIN,
    BrokenMirrorError,
    creation,
    current_schema,
    current_snapshot,
    default_spec,
    new_metadata,
    updated,
)
from distributary.iceberg.pointer import (
    EARLIER_FOLDER,
    FOLDER,
    HOME,
    Current,
    MirrorCommit,
    Pointer,
    VersionHint,
    document_number,
)
from distributary.model.manifest import compact
from distributary.store.base import Store, same_place, stay_inside

VERSION, TABLE, COMMIT, COLUMNS, LIFE = (
    f"distributary.{name}" for name in ("delta-version", "delta-table", "commit", "columns", "life")
)
"""The keys of a snapshot's summary that say which version of which table it shows."""
MAPPING = "schema.name-mapping.default"
EARLIER = "distributary.columns"
"""The property of an Iceberg table that an earlier version wrote; empty once it is a mirror."""
ADOPTED = "distributary.adopted"
"""The property of a Delta table with the snapshot that its log was made of."""
_PROPERTIES = {
    # The files belong to the Delta table: no tool of Iceberg may delete them.
    "gc.enabled": "false",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
_FOREIGN = "another program has written to it"
_DOCUMENT = ".metadata.json"
_METADATA = (".avro", _DOCUMENT)
_ENTRIES = 8000
"""The number of files in one manifest of a mirror that is made anew, about 2 MB."""
_FAN = 8
"""The number of manifests of about one size that are merged into one. A table with a million
files then has a few dozen manifests, and each file is written to a manifest six times."""
_LARGEST = 8**4
"""The number of files from which a manifest is not merged any more."""
_EXPIRED_AT_ONCE = 16
_SLACK_MS = 600_000
"""The tolerance for clocks that differ."""
_DAMAGE = (
    *(BrokenMirrorError, BrokenManifestError),
    *(AttributeError, KeyError, IndexError, TypeError, ValueError),
)
"""The errors for metadata that is not as mirrors write it."""
_SWEPT = re.compile(r"(?:snap-\d+-)?[0-9a-f]{32}(?:-m\d+)?\.(?:avro|parquet)")
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


@dataclass(frozen=True, slots=True)
class Synced:
    """The state of a mirror after an update."""

    version: int
    """The version of the Delta table."""
    snapshot: int
    changed: bool = True
    commits: int = 0
    """The commits of the Delta table in the new snapshot."""
    again: str = ""
    """The reason why the mirror was built again from the whole table."""


@dataclass(frozen=True, slots=True)
class MirrorMark:
    """The mark of a mirror's snapshot."""

    version: int
    table: str
    """The id of the Delta table."""
    commit: str
    """The hash of the commit of this version."""
    columns: str
    """The hash of the Delta table's columns and partition columns."""


def snapshot_of_version(store: Store, version: int) -> int | None:
    """Return the id of the mirror's snapshot that shows a version of the table in `store`.

    None without a mirror in the table's folder, and if no snapshot shows exactly this version.
    """
    try:
        current = VersionHint(store).load()
        if current is None:
            names = [info.name for info in store.files(FOLDER) if info.name.endswith(_DOCUMENT)]
            documents = [orjson.loads(store.read(name)) for name in sorted(names)[-1:]]
        else:
            documents = [current.metadata]
    except (BrokenMirrorError, FileNotFoundError, orjson.JSONDecodeError):
        return None
    for snapshot in reversed(documents[0].get("snapshots") or () if documents else ()):
        mark = mark_of(snapshot)
        if mark is not None and mark.version == version:
            return int(snapshot["snapshot-id"])
    return None


def mark_of(snapshot: Json | None) -> MirrorMark | None:
    """Return the mark of a snapshot; None for a snapshot of another program."""
    summary = (snapshot or {}).get("summary") or {}
    try:
        return MirrorMark(int(summary[VERSION]), summary[TABLE], summary[COMMIT], summary[COLUMNS])
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(slots=True)
class _Changes:
    """What commits of a Delta table did to its files, in all."""

    added: dict[str, DataFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    """Files that were in the table before."""
    metadata: Mapping[str, Any] | None = None
    """The newest description of the table, if one of the commits has any."""
    facts: dict[str, str] = field(default_factory=dict)
    """The newest mark of a batch."""
    moves: bool = True
    """Whether rows only moved from file to file."""

    def take(self, actions: Sequence[Action]) -> None:
        """Take in the actions of the next commit."""
        new: dict[str, DataFile] = {}
        for action in actions:
            if "remove" in action:
                path = unquote(action["remove"]["path"])
                self.moves &= action["remove"].get("dataChange") is False
                if self.added.pop(path, None) is None:
                    self.removed.add(path)
            elif "add" in action:
                file = data_file(action["add"])
                self.moves &= action["add"].get("dataChange") is False
                if action["add"].get("dataChange") is False:
                    # Some writers describe a file again that is part of the table already.
                    self.removed.add(file.path)
                new[file.path] = file
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                refuse_features(action["protocol"])
            elif "commitInfo" in action:
                self.facts = _batch_in(action["commitInfo"]) or self.facts
        self.added |= new


def _batch_in(info: Mapping[str, Any]) -> dict[str, str]:
    """Return pipeline, life, lane and batch of a commit; empty for another program's commit."""
    facts = facts_in(info)
    kept = {key: str(facts[key]) for key in (APP, BATCH, SOURCE, PIPELINE) if key in facts}
    if kept.keys() < {APP, BATCH}:
        return {}
    life = kept[APP].rsplit("/", 2)[-2:][0]
    return {**kept, LIFE: life, "distributary.lane": lane_of(kept[APP])}


class UnmirroredError(Exception):
    """An error for a Delta table that Iceberg cannot show."""


def refuse_features(protocol: Mapping[str, Any]) -> None:
    """Raise UnmirroredError for a table with features that are not translated."""
    features = {*(protocol.get("readerFeatures") or ())} - FEATURES
    if features or int(protocol.get("minReaderVersion") or 1) == 2:
        names = ", ".join(sorted(features)) or "columnMapping"
        raise UnmirroredError(f"the Delta table has features that are not translated: {names}")


def _columns_hash(metadata: Mapping[str, Any]) -> str:
    text = f"{metadata['schemaString']}\0{compact(list(metadata.get('partitionColumns') or ()))}"
    return _hashed(text.encode("utf-8", "surrogatepass"))


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class Mirror:
    """The mirror of one table."""

    def __init__(
        self, store: Store, pointer: Pointer, *, keep: timedelta = timedelta(hours=1)
    ) -> None:
        """Mirror the table in `store`; snapshots stay for `keep`."""
        self._store, self._pointer = store, pointer
        self._keep_ms = int(keep.total_seconds() * 1000)

    def sync(self, *, again: bool = False) -> Synced | None:
        """Bring the mirror up to date; `again`: make it as new. None if there is no table.

        Raises UnmirroredError, ColumnConflictError and UnsupportedTypeError for a table that
        Iceberg cannot show, OvertakenError, BrokenLogError and OSError.
        """
        return until_not_overtaken(lambda: self._attempt(again=again))

    def _load(self) -> tuple[Current | None, str]:
        """Return the current metadata and its problem, if there is one."""
        try:
            current = self._pointer.load()
            if current is None:
                return None, ""
            snapshot = current_snapshot(current.metadata)
            schema = current_schema(current.metadata)
            default_spec(current.metadata)
        except _DAMAGE as error:
            return None, f"its metadata is damaged: {error}"
        if not same_place(current.metadata.get("location"), self._store.address):
            return None, "the lake was moved"
        if mark_of(snapshot) is None:
            return current, "" if _is_earlier(current.metadata) else _FOREIGN
        same = snapshot is not None and snapshot.get("schema-id") == schema["schema-id"]
        if not same or MAPPING not in (current.metadata.get("properties") or {}):
            return current, "another program has changed its columns"
        return current, ""

    def _attempt(self, *, again: bool) -> Synced | None:
        # Files are written and removed below this folder.
        stay_inside(self._store.address, f"{self._store.address}/{FOLDER}")
        current, why = self._load()
        if again:
            why = "it was asked for"
        mark = None if current is None else mark_of(current_snapshot(current.metadata))
        if current is not None and mark is not None and not why:
            commits = self._commits_since(mark)
            if commits is not None and not commits:
                self._pointer.settle(current)
                number = current.metadata["current-snapshot-id"]
                return Synced(mark.version, number, changed=False)
            if commits is None:
                why = "the log of the table is another one, or lacks commits"
            else:
                try:
                    return self._continue(current, mark, commits)
                except (*_DAMAGE, FileNotFoundError) as error:
                    why = f"its metadata is damaged: {error}"
        return self._make(current, again=again, why=why)

    def _commits_since(self, mark: MirrorMark) -> list[bytes] | None:
        """Return the commits after a mark; None if the log does not continue from the mark."""
        try:
            if _hashed(read_commit(self._store, mark.version)) != mark.commit:
                return None
        except FileNotFoundError:
            return None
        commits: list[bytes] = []
        with suppress(FileNotFoundError):
            while True:
                commits.append(read_commit(self._store, mark.version + len(commits) + 1))
        return commits

    def _continue(self, current: Current, mark: MirrorMark, commits: Sequence[bytes]) -> Synced:
        """Add a snapshot with the changes of the commits."""
        changes = _Changes()
        for actions in commits_in(commits, files=True):
            changes.take(actions)
        metadata, columns = changes.metadata, mark.columns
        draft = _Draft(self._store, current.metadata)
        if metadata is not None:
            columns = _columns_hash(metadata)
            old = [part["name"] for part in default_spec(current.metadata)["fields"]]
            if metadata["id"] != mark.table or old != list(metadata.get("partitionColumns") or ()):
                raise BrokenMirrorError("the table was replaced")
        if metadata is not None and columns != mark.columns:
            draft.evolve(metadata)
        draft.start()
        snapshot = _newest(current.metadata)
        draft.change(_name_in(self._store, snapshot["manifest-list"]), changes)
        version = mark.version + len(commits)
        before = {key: snapshot["summary"].get(key) for key in (APP, BATCH, SOURCE, PIPELINE, LIFE)}
        draft.facts = {
            **{key: value for key, value in before.items() if value is not None},
            **changes.facts,
            VERSION: str(version),
            TABLE: mark.table,
            COMMIT: _hashed(commits[-1]),
            COLUMNS: columns,
        }
        done = self._commit(current, draft)
        return Synced(version, done, commits=len(commits))

    def _make(self, current: Current | None, *, again: bool, why: str) -> Synced | None:
        """Add a snapshot with all files of the table, in a new Iceberg table if need be."""
        state = load(self._store)
        if state is None:
            return None
        refuse_features(state.protocol)
        if current is not None and _is_earlier(current.metadata):
            # its next snapshot is the first of the mirror
            adopted = state.property(ADOPTED) == str(current.metadata["current-snapshot-id"])
            why = why if adopted else _FOREIGN
        if again or current is None:
            self._pointer.forget()
            current = None
        draft = None if current is None else self._draft_on(current, state)
        if draft is None:
            self._pointer.forget()
            current = None
            now = int(time.time() * 1000)
            draft = _Draft(self._store, new_metadata(self._store.address, str(uuid.uuid4()), now))
            draft.updates += creation(self._store.address)
            draft.evolve(state.metadata, partition_by=state.partition_columns)
        draft.start()
        draft.replace(list(state.files.values()))
        data = read_commit(self._store, state.version)
        actions = commits_in([data], files=False)[0]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        draft.facts = {
            **(_batch_in(infos[0]) if infos else {}),
            VERSION: str(state.version),
            TABLE: state.metadata["id"],
            COMMIT: _hashed(data),
            COLUMNS: _columns_hash(state.metadata),
        }
        return Synced(state.version, self._commit(current, draft), again=why)

    def _draft_on(self, current: Current, state: Snapshot) -> _Draft | None:
        """Return a draft of a snapshot on top of a mirror; None if columns or partitions differ."""
        try:
            draft = _Draft(self._store, current.metadata)
            parts = [part["name"] for part in default_spec(current.metadata)["fields"]]
            if parts != list(state.partition_columns):
                return None
            draft.evolve(state.metadata)
        except Exception:
            # Whatever it is: a new table has no past that could stand in its way.
            return None
        return draft

    def _commit(self, current: Current | None, draft: _Draft) -> int:
        try:
            commit = draft.finish(self._keep_ms)
            gone = self._pointer.commit(current, commit)
        except OvertakenError:
            self._store.remove_files(draft.written)
            raise
        with suppress(OSError):
            self._clean(gone, commit.after, expired=draft.expired)
        return draft.snapshot

    def _clean(self, documents: Sequence[str], metadata: Json, *, expired: bool) -> None:
        """Remove old documents and, if snapshots have expired, what only they needed."""
        folder = f"{self._store.address}/"
        names = [name.removeprefix(folder) for name in documents if name.startswith(folder)]
        self._store.remove_files([name for name in names if name.startswith(f"{FOLDER}/")])
        if expired:
            self._store.remove_files(self._unneeded(metadata))

    def _unneeded(self, metadata: Json) -> list[str]:
        """Return the files of the mirror that no kept snapshot needs.

        A manifest that is older than the oldest kept snapshot, and not in its list, is in no later
        one either.
        """
        home = f"{self._store.address}/{HOME}/"
        snapshots = [s for s in metadata["snapshots"] if s["manifest-list"].startswith(home)]
        snapshots.sort(key=lambda s: s["sequence-number"])
        before = snapshots[0]["timestamp-ms"] - _SLACK_MS
        needed = {_name_in(self._store, snapshot["manifest-list"]) for snapshot in snapshots}
        for snapshot in (snapshots[0], snapshots[-1]):
            for record in read_list(
                self._store.read(_name_in(self._store, snapshot["manifest-list"]))
            ):
                name = _name_in(self._store, record["manifest_path"])
                needed.add(name)
                if record["content"] == DELETES:
                    for entry in read_manifest(self._store.read(name), record):
                        needed.add(_name_in(self._store, entry["data_file"]["file_path"]))
        listed = self._store.files(FOLDER)
        if not _names_earlier(metadata, self._store):
            listed += self._store.files(EARLIER_FOLDER)
        numbers = [number for info in listed if (number := document_number(info.name)) is not None]
        oldest = max(numbers, default=0) - KEPT_DOCUMENTS
        return [
            info.name
            for info in listed
            if info.modified * 1000 < before
            and info.name not in needed
            and (
                _SWEPT.fullmatch(info.name.rpartition("/")[2])
                or _is_old(info.name, oldest)
                or (info.name.startswith(f"{EARLIER_FOLDER}/") and info.name.endswith(_METADATA))
            )
        ]


def _is_earlier(metadata: Json) -> bool:
    """Return whether an earlier version wrote the current snapshot of a table."""
    return bool((metadata.get("properties") or {}).get(EARLIER))


def _names_earlier(metadata: Json, store: Store) -> bool:
    """Return whether metadata names files that an earlier version wrote."""
    names = [snapshot["manifest-list"] for snapshot in metadata["snapshots"]]
    names += [document["metadata-file"] for document in metadata.get("metadata-log") or ()]
    return any(name.startswith(f"{store.address}/{EARLIER_FOLDER}/") for name in names)


def _is_old(name: str, oldest: int) -> bool:
    number = document_number(name)
    return number is not None and number < oldest


def _newest(metadata: Json) -> Json:
    """Return the newest snapshot. Raises BrokenMirrorError."""
    snapshot = current_snapshot(metadata)
    if snapshot is None:
        raise BrokenMirrorError("the metadata has no snapshot")
    return snapshot


def _name_in(store: Store, address: str) -> str:
    """Return the name of a file of the mirror in its table's store. Raises BrokenMirrorError."""
    name = address.removeprefix(f"{store.address}/")
    if name == address or not name.startswith(f"{HOME}/") or ".." in name.split("/"):
        raise BrokenMirrorError(f"a file of the mirror is in another folder: {address[:300]}")
    return name


class _Draft:
    """The next snapshot of a mirror: its files are written, and no metadata names them yet."""

    def __init__(self, store: Store, before: Json) -> None:
        self._store, self._before = store, before
        self.updates: list[Json] = []
        self.facts: dict[str, str] = {}
        self.written: list[str] = []
        self.expired = False
        self.snapshot = secrets.randbits(62) | 1
        self.sequence = int(before["last-sequence-number"]) + 1
        self._records: list[Json] = []
        self._counts: dict[str, int] = {}
        self._operation = "append"
        self._id = uuid.uuid4().hex
        self._metadata = before

    def evolve(
        self, metadata: Mapping[str, Any], *, partition_by: Sequence[str] | None = None
    ) -> None:
        """Take in the columns of the Delta table, and the partition columns of a new one."""
        before = self._before
        mine = _last_own_schema(before)
        fields = fields_in(metadata["schemaString"])
        schema, last = iceberg_schema(fields, mine, int(before["last-column-id"]))
        numbers = [known["schema-id"] for known in before["schemas"]]
        schema["schema-id"] = max(numbers, default=-1) + 1
        current = next(
            (s for s in before["schemas"] if s["schema-id"] == before["current-schema-id"]), None
        )
        if current is None or current.get("fields") != schema["fields"]:
            self.updates += [
                {"action": "add-schema", "schema": schema, "last-column-id": last},
                {"action": "set-current-schema", "schema-id": -1},
            ]
        if partition_by is not None:
            parts = partitioning(schema, partition_by)
            spec = {"spec-id": 0, "fields": partition_fields(schema, parts)}
            self.updates += [
                {"action": "add-spec", "spec": spec},
                {"action": "set-default-spec", "spec-id": -1},
            ]
        properties = {**_PROPERTIES, MAPPING: name_mapping(schema)}
        folder = f"{self._store.address}/{FOLDER}"
        properties["write.metadata.path"] = folder
        if EARLIER in before["properties"]:
            properties[EARLIER] = ""
        if metadata.get("description"):
            properties["comment"] = str(metadata["description"])
        self.updates.append({"action": "set-properties", "updates": properties})

    def start(self) -> None:
        """Fix the columns of the snapshot."""
        self._metadata = updated(
            self._before, [u for u in self.updates if u["action"] in _OWN_UPDATES]
        )
        self._schema = current_schema(self._metadata)
        self._spec = default_spec(self._metadata)
        self._parts = partitioning(self._schema, [p["name"] for p in self._spec["fields"]])
        self._types = {f["name"]: (f["id"], f["type"]) for f in self._schema["fields"]}

    def replace(self, files: Sequence[DataFile]) -> None:
        """List all files of a table anew."""
        self._operation = "overwrite" if self._before["current-snapshot-id"] else "append"
        entries = [self._entry(file) for file in files]
        for at in range(0, len(entries), _ENTRIES):
            self._records.append(self._manifest(entries[at : at + _ENTRIES]))
        self._delete_rows(files)
        self._count("added", entries)
        self._total({}, entries, ())

    def change(self, list_name: str, changes: _Changes) -> None:
        """List the files that were added, and mark the files that were removed."""
        records = [r for r in read_list(self._store.read(list_name)) if live_files(r)]
        gone = {self._address(path) for path in changes.removed}
        new = [self._entry(file) for file in changes.added.values()]
        lost: list[Json] = []
        kept: list[Json] = []
        changed: list[Json] = []
        for record in records:
            rewritten = self._without(record, gone, lost)
            if rewritten is record:
                kept.append(record)
            else:
                changed.append(rewritten)
        found = {e["data_file"]["file_path"] for e in lost if e["data_file"]["content"] == ROWS}
        sure = {self._address(path) for path in changes.removed - changes.added.keys()}
        if sure - found:
            raise BrokenMirrorError(f"a file of the table is not listed: {min(sure - found)}")
        if new:
            self._records.append(self._manifest(new))
        self._records += changed
        self._delete_rows([*changes.added.values()])
        self._records += self._merged(kept)
        rows = [entry for entry in lost if entry["data_file"]["content"] == ROWS]
        if rows:
            self._operation = "replace" if changes.moves else "overwrite" if new else "delete"
        self._count("added", new)
        self._count("deleted", rows)
        self._total(_newest(self._before)["summary"], new, rows)

    def finish(self, keep_ms: int) -> MirrorCommit:
        """Write the manifest list and return the commit."""
        before = self._before
        parent = before.get("current-snapshot-id")
        # Some readers refuse a snapshot that is older than the one before.
        now = max(int(time.time() * 1000), int(before["last-updated-ms"]))
        name = f"{FOLDER}/snap-{self.snapshot}-{self._id}.avro"
        self._write(name, write_list(self._records, self.snapshot, parent, self.sequence))
        summary = {"operation": self._operation, **self.facts}
        summary |= {key: str(count) for key, count in self._counts.items()}
        snapshot = {
            "snapshot-id": self.snapshot,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": self.sequence,
            "timestamp-ms": now,
            "manifest-list": f"{self._store.address}/{name}",
            "summary": summary,
            "schema-id": self._schema["schema-id"],
        }
        self.updates += [
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": MAIN,
                "type": "branch",
                "snapshot-id": self.snapshot,
            },
        ]
        expired = self._expired(now - keep_ms)
        if len(expired) >= _EXPIRED_AT_ONCE:
            self.expired = True
            self.updates.append({"action": "remove-snapshots", "snapshot-ids": expired})
        own = [update for update in self.updates if update["action"] in _OWN_UPDATES]
        after = updated(before, own)
        if parent is None and not before["schemas"]:
            requirements: list[Json] = [{"type": "assert-create"}]
        else:
            requirements = [
                {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": parent},
            ]
        return MirrorCommit(after, self.updates, requirements, self._store.address)

    def _expired(self, moment: int) -> list[int]:
        """Return the snapshots that are older than a time and that no branch or tag names."""
        named = {ref["snapshot-id"] for ref in (self._before.get("refs") or {}).values()}
        return [
            snapshot["snapshot-id"]
            for snapshot in self._before.get("snapshots") or ()
            if snapshot["timestamp-ms"] < moment and snapshot["snapshot-id"] not in named
        ]

    def _entry(self, file: DataFile) -> Json:
        rows = file.written
        if rows is None:
            name = in_table(self._store.address, file.path)
            with opened(self._store, name, size=file.size) as source:
                rows = pq.read_metadata(source).num_rows
        described = file_of(file, self._address(file.path), rows, self._types, self._parts)
        return added(described, self.snapshot)

    def _address(self, path: str) -> str:
        return f"{self._store.address}/{in_table(self._store.address, path)}"

    def _without(self, record: Json, gone: set[str], lost: list[Json]) -> Json:
        """Return a manifest without the files that are gone; the record itself if it has none."""
        deletes = record["content"] == DELETES
        sought = gone if deletes else gone - {e["data_file"]["file_path"] for e in lost}
        if not sought or record["partition_spec_id"] != self._spec["spec-id"]:
            return record
        entries = self._read(record)
        name = "referenced_data_file" if deletes else "file_path"
        hit = [entry for entry in entries if entry["data_file"][name] in gone]
        if not hit:
            return record
        lost += hit
        for entry in hit:
            entry["status"], entry["snapshot_id"] = DELETED, self.snapshot
        return self._manifest(entries, content=record["content"])

    def _merged(self, records: Sequence[Json]) -> list[Json]:
        """Return the manifests after merging those of about one size, if there are many."""
        levels: dict[int, list[Json]] = {}
        others: list[Json] = []
        for record in records:
            plain = record["partition_spec_id"] == self._spec["spec-id"]
            if record["content"] != ROWS or not plain or live_files(record) >= _LARGEST:
                others.append(record)
            else:
                levels.setdefault(_level(live_files(record)), []).append(record)
        for level in range(8):
            if len(levels.get(level, ())) >= _FAN:
                entries = [e for record in levels.pop(level) for e in self._read(record)]
                merged = self._manifest(entries)
                levels.setdefault(max(level + 1, _level(len(entries))), []).append(merged)
        return [record for level in sorted(levels) for record in levels[level]] + others

    def _read(self, record: Json) -> list[Json]:
        name = _name_in(self._store, record["manifest_path"])
        return read_manifest(self._store.read(name), record)

    def _manifest(self, entries: Sequence[Json], *, content: int = ROWS) -> Json:
        name = f"{FOLDER}/{self._id}-m{len(self.written)}.avro"
        data = write_manifest(entries, self._schema, self._spec, self._parts, content=content)
        self._write(name, data)
        return described(
            f"{self._store.address}/{name}",
            len(data),
            entries,
            partition_spec_id=self._spec["spec-id"],
            content=content,
            sequence_number=self.sequence,
            added_snapshot_id=self.snapshot,
        )

    def _delete_rows(self, files: Sequence[DataFile]) -> None:
        """List the rows that deletion vectors take out of files, as files of positions."""
        entries = []
        for file in files:
            if file.vector is None:
                continue
            address = self._address(file.path)
            positions = read_vector(self._store, file.vector)
            rows = pa.table([pa.array([address] * len(positions)), pa.array(positions)], _POSITIONS)
            sink = io.BytesIO()
            pq.write_table(rows, sink, compression="zstd", store_schema=False)
            name = f"{FOLDER}/{uuid.uuid4().hex}.parquet"
            self._write(name, sink.getvalue())
            about = {
                "content": DELETES,
                "file_path": f"{self._store.address}/{name}",
                "file_format": "PARQUET",
                "partition": self._parts.values(file.values),
                "record_count": len(positions),
                "file_size_in_bytes": sink.tell(),
                "value_counts": None,
                "null_value_counts": None,
                "lower_bounds": [{"key": PATH_ID, "value": address.encode()}],
                "upper_bounds": [{"key": PATH_ID, "value": address.encode()}],
                "referenced_data_file": address,
            }
            entries.append(added(about, self.snapshot))
        if entries:
            self._records.append(self._manifest(entries, content=DELETES))

    def _write(self, name: str, data: bytes) -> None:
        self.written.append(name)
        self._store.write(name, data)

    def _count(self, what: str, entries: Sequence[Json]) -> None:
        if entries:
            size = "added-files-size" if what == "added" else "removed-files-size"
            self._counts[f"{what}-data-files"] = len(entries)
            self._counts[f"{what}-records"] = _rows(entries)
            self._counts[size] = _bytes(entries)

    def _total(self, before: Mapping[str, str], new: Sequence[Json], lost: Sequence[Json]) -> None:
        for key, function in (("data-files", len), ("records", _rows), ("files-size", _bytes)):
            name = f"total-{key}"
            self._counts[name] = int(before.get(name, 0)) + function(new) - function(lost)
        deletes = [record for record in self._records if record["content"] == DELETES]
        self._counts["total-delete-files"] = sum(live_files(record) for record in deletes)
        self._counts["total-position-deletes"] = sum(
            record["added_rows_count"] + record["existing_rows_count"] for record in deletes
        )
        self._counts["total-equality-deletes"] = 0


_OWN_UPDATES = frozenset(
    {
        "add-schema",
        "set-current-schema",
        "add-spec",
        "set-default-spec",
        "set-properties",
        "add-snapshot",
        "set-snapshot-ref",
        "remove-snapshots",
    }
)
"""The updates that change a document; the others begin one, for a server that has none yet."""


def _last_own_schema(metadata: Json) -> Json | None:
    """Return the columns of the newest snapshot that is ours; None if there is none."""
    if _is_earlier(metadata):
        return current_schema(metadata)
    by_id = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    for snapshot in reversed(metadata.get("snapshots") or ()):
        if mark_of(snapshot) is not None:
            found: Json | None = by_id.get(snapshot.get("schema-id"))
            return found
    return None


def _level(files: int) -> int:
    level = 0
    while files >= _FAN:
        files //= _FAN
        level += 1
    return level


def _rows(entries: Sequence[Json]) -> int:
    return sum(entry["data_file"]["record_count"] for entry in entries)


def _bytes(entries: Sequence[Json]) -> int:
    return sum(entry["data_file"]["file_size_in_bytes"] for entry in entries)
