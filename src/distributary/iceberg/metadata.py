"""The metadata document of an Iceberg table, and the updates that change it.

An update is a dict in the words of Iceberg's REST protocol: a catalog with a server gets the
updates, all others the document that they lead to.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from distributary.iceberg.iceberg_columns import Json

MAIN = "main"
KEPT_DOCUMENTS = 10
"""The number of older metadata documents that stay beside the newest."""
_NEEDED: Mapping[str, type] = {
    "table-uuid": str,
    "location": str,
    "last-sequence-number": int,
    "last-updated-ms": int,
    "last-column-id": int,
    "schemas": list,
    "current-schema-id": int,
    "partition-specs": list,
    "default-spec-id": int,
    "last-partition-id": int,
    "sort-orders": list,
    "default-sort-order-id": int,
}
_OPTIONAL: Mapping[str, type] = {
    "properties": dict,
    "refs": dict,
    "snapshots": list,
    "statistics": list,
    "snapshot-log": list,
    "metadata-log": list,
}

Updates = Sequence[Mapping[str, Any]]


class BrokenMirrorError(Exception):
    """An error for metadata that cannot be read or is not what a mirror writes."""


def new_metadata(location: str, table_uuid: str, now: int) -> Json:
    """Return the document of a table without columns, which updates then fill."""
    return {
        "format-version": 2,
        "table-uuid": table_uuid,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": now,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": -1,
        "partition-specs": [],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def creation(location: str) -> list[Json]:
    """Return the updates that begin a new table, for a catalog with a server."""
    return [
        {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-location", "location": location},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]


def check_metadata(document: Any) -> Json:
    """Return a metadata document; raise BrokenMirrorError for what no mirror has written."""
    if not isinstance(document, dict):
        raise BrokenMirrorError("the metadata is not a JSON object")
    wrong = [name for name, kind in _NEEDED.items() if type(document.get(name)) is not kind]
    wrong += [n for n, kind in _OPTIONAL.items() if type(document.get(n, kind())) is not kind]
    items = {"properties": str}
    for name in (_NEEDED.keys() | _OPTIONAL.keys()) - set(wrong):
        value = document.get(name)
        parts = list(value.values()) if isinstance(value, dict) else value
        wanted = items.get(name, dict)
        if isinstance(parts, list) and not all(isinstance(part, wanted) for part in parts):
            wrong.append(name)
    current = document.get("current-snapshot-id")
    if current is not None and type(current) is not int:
        wrong.append("current-snapshot-id")
    if wrong:
        raise BrokenMirrorError(
            f"these fields of the metadata are missing or invalid: {', '.join(wrong)}"
        )
    if document["default-sort-order-id"] not in {
        s.get("order-id") for s in document["sort-orders"]
    }:
        raise BrokenMirrorError("the sort order is not in the list of sort orders")
    if current is not None and current_snapshot(document) is None:
        raise BrokenMirrorError(f"the metadata has no snapshot {current}")
    try:
        uuid.UUID(document["table-uuid"])
    except ValueError as error:
        raise BrokenMirrorError(f"the id of the table is not a UUID: {error}") from error
    if document.get("format-version") not in (2, 3):
        raise BrokenMirrorError(f"the format version is {document.get('format-version')}")
    return document


def current_snapshot(metadata: Json) -> Json | None:
    """Return the newest snapshot of the main branch; None before the first."""
    number = metadata.get("current-snapshot-id")
    snapshots = metadata.get("snapshots") or ()
    return next((s for s in snapshots if s["snapshot-id"] == number), None)


def current_schema(metadata: Json) -> Json:
    """Return the current schema. Raises BrokenMirrorError."""
    return _with_id(metadata, "schemas", "schema-id", metadata["current-schema-id"])


def default_spec(metadata: Json) -> Json:
    """Return the partition spec of new files. Raises BrokenMirrorError."""
    return _with_id(metadata, "partition-specs", "spec-id", metadata["default-spec-id"])


def _with_id(metadata: Json, group: str, name: str, number: int) -> Json:
    for item in metadata[group]:
        if item.get(name) == number:
            return dict(item)
    raise BrokenMirrorError(f"the metadata has no {name} {number}")


def updated(metadata: Json, updates: Updates) -> Json:
    """Return the document after updates; the document before stays as it is."""
    after = {**metadata, "refs": dict(metadata.get("refs") or {})}
    for name in ("schemas", "partition-specs", "snapshots", "snapshot-log"):
        after[name] = list(metadata.get(name) or ())
    after["properties"] = dict(metadata.get("properties") or {})
    for update in updates:
        _apply(after, update)
    return after


def _apply(after: Json, update: Mapping[str, Any]) -> None:
    match update["action"]:
        case "add-schema":
            schema = dict(update["schema"])
            after["schemas"].append(schema)
            after["last-column-id"] = max(after["last-column-id"], update["last-column-id"])
        case "set-current-schema":
            after["current-schema-id"] = after["schemas"][-1]["schema-id"]
        case "add-spec":
            spec = copy.deepcopy(dict(update["spec"]))
            after["partition-specs"].append(spec)
            numbers = [field["field-id"] for field in spec["fields"]]
            after["last-partition-id"] = max([after["last-partition-id"], *numbers])
        case "set-default-spec":
            after["default-spec-id"] = after["partition-specs"][-1]["spec-id"]
        case "set-properties":
            after["properties"] |= update["updates"]
        case "add-snapshot":
            snapshot = update["snapshot"]
            after["snapshots"].append(snapshot)
            after["last-sequence-number"] = snapshot["sequence-number"]
            after["last-updated-ms"] = snapshot["timestamp-ms"]
        case "set-snapshot-ref":
            number = update["snapshot-id"]
            after["refs"][MAIN] = {"snapshot-id": number, "type": "branch"}
            after["current-snapshot-id"] = number
            moment = {"timestamp-ms": after["last-updated-ms"], "snapshot-id": number}
            after["snapshot-log"].append(moment)
        case "remove-snapshots":
            _remove_snapshots(after, frozenset(update["snapshot-ids"]))
        case other:
            raise ValueError(f"no such update: {other}")


def _remove_snapshots(after: Json, gone: frozenset[int]) -> None:
    after["snapshots"] = [s for s in after["snapshots"] if s["snapshot-id"] not in gone]
    log = [moment for moment in after["snapshot-log"] if moment["snapshot-id"] not in gone]
    after["snapshot-log"] = log
    used = {s.get("schema-id") for s in after["snapshots"]} | {after["current-schema-id"]}
    after["schemas"] = [s for s in after["schemas"] if s["schema-id"] in used]


def logged(after: Json, before: Json, location: str) -> tuple[Json, list[str]]:
    """Return the document with its predecessor in its log, and the documents that leave the log."""
    entry = {"timestamp-ms": before["last-updated-ms"], "metadata-file": location}
    log = [*(before.get("metadata-log") or ()), entry]
    gone, kept = log[:-KEPT_DOCUMENTS], log[-KEPT_DOCUMENTS:]
    return {**after, "metadata-log": kept}, [str(old["metadata-file"]) for old in gone]
