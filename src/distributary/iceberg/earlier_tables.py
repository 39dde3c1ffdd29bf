"""Iceberg tables that an earlier version wrote: each gets a Delta log, once.

That version kept columns, files and marks in Iceberg's metadata alone. The files of the current
snapshot become the first commit of a Delta log, under the number that the table's version had, so
that the versions in the ledger stay true. No row is read or written. The log appears at once, by a
rename: a process that is killed before has changed nothing. The mirror then continues the same
Iceberg table, with its id, the ids of its columns and its past.

What Delta would read otherwise than Iceberg is refused by name: deleted rows, partitions, files
elsewhere, columns that were renamed or dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from distributary.delta.column_merge import Field, UnsupportedTypeError
from distributary.delta.commit import APP, BATCH, SOURCE, Change, begin_log
from distributary.delta.damage import TAG
from distributary.delta.log import in_table
from distributary.delta.log_reading import LOG
from distributary.errors import PublishError
from distributary.iceberg.iceberg_columns import Json, delta_fields, name_mapping
from distributary.iceberg.manifests import (
    ROWS,
    BrokenManifestError,
    live_files,
    read_list,
    read_manifest,
)
from distributary.iceberg.metadata import BrokenMirrorError, current_schema, current_snapshot
from distributary.iceberg.mirror import ADOPTED, EARLIER, MAPPING
from distributary.iceberg.pointer import EARLIER_FOLDER, Pointer
from distributary.model.manifest import Mark, StagedFile, compact, parsed
from distributary.store.base import Store, local_folder

_MARK = f"{BATCH}."
"""The prefix of the properties that hold each application's newest batch."""
_FORMAT_VERSION = 2
"""The format version of mirrors."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_earlier(path: str) -> bool:
    """Return whether a folder holds a table of an earlier version, which has no Delta log."""
    folder = local_folder(path)
    if folder is None or os.path.lexists(f"{folder}/{LOG}"):
        return False
    with suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(f"{folder}/{EARLIER_FOLDER}")
        return any(name.endswith(".metadata.json") for name in names)
    return False


@dataclass(frozen=True, slots=True)
class EarlierTable:
    """A table of an earlier version, by its current metadata."""

    store: Store
    metadata: Json

    @classmethod
    def of(cls, store: Store, pointer: Pointer) -> EarlierTable:
        """Open a table by the pointer of its mirror. Raises PublishError and CatalogError."""
        try:
            current = pointer.load()
        except BrokenMirrorError as error:
            raise _refused(store, f"its metadata cannot be read: {error}", _PUT_BACK) from error
        if current is None:
            raise _refused(
                store,
                "the catalog has no table of this name",
                "name the catalog in lake.iceberg in which the table is",
            )
        return cls(store, current.metadata)

    @property
    def fields(self) -> list[Field]:
        """Return the columns in Delta's form. Raises PublishError."""
        kept: Any = {}
        with suppress(ValueError):
            kept = json.loads(self._properties.get(EARLIER) or "{}")
        try:
            fields = delta_fields(current_schema(self.metadata))
        except UnsupportedTypeError as error:
            raise self._refused(str(error), _REWRITE) from error
        return [{**f, "metadata": {**kept.get(f["name"], {}), **f["metadata"]}} for f in fields]

    def adopt(self) -> None:
        """Write the Delta log; nothing happens if there is one. Raises PublishError."""
        begin_log(self.store, self.first_change(), int(self.metadata["last-sequence-number"]))

    def first_change(self) -> Change:
        """Return the content of the Delta log. Raises PublishError and OutsideLakeError."""
        if self.metadata["format-version"] != _FORMAT_VERSION:
            raise self._refused(
                f"its format version is {self.metadata['format-version']}",
                "let Iceberg's own tools copy it to a table of format version 2",
            )
        self._refuse_other_names()
        files = list(self._files())
        marks, newest = self._marks()
        snapshot = self.metadata.get("current-snapshot-id")
        return Change(
            operation="CONVERT",
            name=self.store.address.rpartition("/")[2],
            comment=self._properties.get("comment") or "",
            fields=self.fields,
            properties={ADOPTED: str(snapshot)},
            added=files,
            appends=True,
            mark=newest,
            marks=marks,
            metrics={"numFiles": len(files), "numOutputRows": sum(file.rows for file in files)},
        )

    @property
    def _properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}

    def _summaries(self) -> list[Mapping[str, str]]:
        """Return the summaries of the kept snapshots that pipelines committed, in order."""
        snapshots = sorted(self.metadata.get("snapshots") or (), key=_sequence)
        summaries = [snapshot.get("summary") or {} for snapshot in snapshots]
        return [facts for facts in summaries if APP in facts and BATCH in facts]

    def _marks(self) -> tuple[dict[str, int], Mark | None]:
        """Return the newest batch of each application, and the mark of the newest commit."""
        named = [(f[APP], f[BATCH]) for f in self._summaries()]
        for name, batch in self._properties.items():
            if name.startswith(_MARK):
                named.append((name.removeprefix(_MARK), batch))
        marks: dict[str, int] = {}
        for app, batch in named:
            if batch.isdecimal():
                marks[app] = max(int(batch), marks.get(app, -1))
        for facts in reversed(self._summaries()):
            # a snapshot that is the newest kept one may be older than the newest batch
            if facts[BATCH] == str(marks.get(facts[APP])):
                return marks, Mark(facts[APP], int(facts[BATCH]), facts.get(SOURCE, ""))
        return marks, None

    def _files(self) -> Iterator[StagedFile]:
        """Yield the live files. Raises PublishError and OutsideLakeError."""
        sums: dict[str, str] = {}
        for facts in self._summaries():
            sums |= parsed(facts[TAG]) if TAG in facts else {}
        columns = {f["id"]: (f["name"], f["type"]) for f in current_schema(self.metadata)["fields"]}
        try:
            for entry in self._entries():
                file = entry["data_file"]
                if file["file_format"].upper() != "PARQUET":
                    raise self._refused(f"it has files of {file['file_format']}", _REWRITE)
                path = in_table(self.store.address, self._inside(file["file_path"]))
                yield StagedFile(
                    path=path,
                    size=file["file_size_in_bytes"],
                    rows=file["record_count"],
                    stats=_statistics(file, columns),
                    checksum=sums.get(path),
                )
        except (BrokenManifestError, FileNotFoundError) as error:
            raise self._refused(f"its metadata cannot be read: {error}", _PUT_BACK) from error

    def _entries(self) -> Iterator[Json]:
        snapshot = current_snapshot(self.metadata)
        if snapshot is None:
            return
        specs = {spec["spec-id"]: spec["fields"] for spec in self.metadata["partition-specs"]}
        manifests = self._inside(snapshot["manifest-list"])
        for record in read_list(self.store.read(in_table(self.store.address, manifests))):
            if not live_files(record):
                continue
            if record["content"] != ROWS:
                raise self._refused("it has deleted rows", _REWRITE)
            if specs.get(record["partition_spec_id"]) or specs[self.metadata["default-spec-id"]]:
                raise self._refused("it is partitioned", _REWRITE)
            path = in_table(self.store.address, self._inside(record["manifest_path"]))
            yield from read_manifest(self.store.read(path), record)

    def _inside(self, address: str) -> str:
        """Return the path of a file in the table's folder; an address elsewhere stays as it is."""
        plain = address.removeprefix("file:").removeprefix("//")
        return plain.removeprefix(f"{self.store.address}/")

    def _refuse_other_names(self) -> None:
        """Refuse a table whose files have columns under other names than the table."""
        mapping = self._properties.get(MAPPING)
        own = name_mapping(current_schema(self.metadata))
        if mapping is not None and _names_in(parsed(mapping)) != _names_in(parsed(own)):
            raise self._refused(
                "columns of it were renamed or dropped",
                f"{_REWRITE}, then remove the table's property {MAPPING}",
            )

    def _refused(self, evidence: str, next_step: str) -> PublishError:
        return _refused(self.store, evidence, next_step)


_PUT_BACK = "put the files back from a copy"
_REWRITE = (
    "let Iceberg's own tools write its files again as a plain table (Spark: CALL "
    "system.rewrite_data_files with rewrite-all)"
)


def _refused(store: Store, evidence: str, next_step: str) -> PublishError:
    return PublishError(
        "an Iceberg table of an earlier version cannot get a Delta log",
        where=store.address,
        evidence=evidence,
        next_step=next_step,
        reason="format",
    )


def _sequence(snapshot: Json) -> int:
    return int(snapshot.get("sequence-number") or 0)


def _names_in(level: Sequence[Json]) -> dict[int, Any]:
    return {
        entry["field-id"]: (entry["names"], _names_in(entry.get("fields") or ())) for entry in level
    }


# The statistics of a file, from the bounds that are exact in every manifest.


def _statistics(file: Json, columns: Mapping[int, tuple[str, Any]]) -> str:
    bounds = {}
    for key, bound in (("minValues", "lower_bounds"), ("maxValues", "upper_bounds")):
        values = {pair["key"]: pair["value"] for pair in file.get(bound) or ()}
        named = {columns[n][0]: _value(columns[n][1], v) for n, v in values.items() if n in columns}
        bounds[key] = {name: value for name, value in named.items() if value is not None}
    both = bounds["minValues"].keys() & bounds["maxValues"].keys()
    nulls = {pair["key"]: pair["value"] for pair in file.get("null_value_counts") or ()}
    return compact(
        {
            "numRecords": file["record_count"],
            **{key: {n: v for n, v in found.items() if n in both} for key, found in bounds.items()},
            "nullCount": {columns[n][0]: count for n, count in nulls.items() if n in columns},
        }
    )


def _value(type_: Any, bound: bytes) -> Any:
    if type_ not in ("int", "long", "timestamptz"):
        return None
    number = int.from_bytes(bound, "little", signed=True)
    if type_ != "timestamptz":
        return number
    with suppress(OverflowError):
        moment = _EPOCH + timedelta(microseconds=number)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return None
