"""Reads a folder of change files as a slow and simple reader would, and replays it.

Nothing here comes from the simulator: names, keys and order are taken from the events alone.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro

Claim = tuple[str, str, str]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Read:
    """An event, and where it was found."""

    file: str
    row: int
    event: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.event["source_metadata"])

    @property
    def claim(self) -> Claim:
        names = (self.metadata.get(part) or "" for part in ("database", "schema", "table"))
        database, schema, table = names
        return database, schema, table

    @property
    def is_backfill(self) -> bool:
        return "backfill" in self.event["read_method"]

    @property
    def millis(self) -> int:
        return millis(self.event["source_timestamp"])

    @property
    def content(self) -> str:
        return json.dumps(self.event, sort_keys=True, default=repr)


def millis(told: Any) -> int:
    """A time in any of the ways in which it was ever written."""
    if isinstance(told, int):
        return told
    if isinstance(told, str):
        told = datetime.fromisoformat(told.removesuffix("Z")).replace(tzinfo=UTC)
    return int((told - EPOCH) / timedelta(milliseconds=1))


def is_data(path: Path) -> bool:
    name = path.name
    return not name.startswith(".") and not name.endswith((".avsc", "_$folder$"))


def events_of(path: Path) -> list[dict[str, Any]]:
    """What is in a file, whatever its name says: its first bytes tell."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if not data:
        return []
    if data[:4] == b"Obj\x01":
        records: list[Any] = list(fastavro.reader(io.BytesIO(data)))
        return records
    if data[:1] == b"[":
        return list(json.loads(data))
    return [json.loads(line) for line in data.decode().split("\n") if line]


def read_all(root: Path) -> list[Read]:
    """Every event of every file, in the order of a listing."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and is_data(path):
            for row, event in enumerate(events_of(path)):
                found.append(Read(path.relative_to(root).as_posix(), row, event))
    return found


def distinct(reads: Iterable[Read]) -> list[Read]:
    """Without what came again: the same id and the same content."""
    return list({(read.event["uuid"], read.content): read for read in reads}.values())


def numbers(metadata: dict[str, Any]) -> tuple[int, ...]:
    """The position in the source's log."""
    if metadata.get("log_file"):
        if "log_position" in metadata:
            return int(metadata["log_file"].rpartition(".")[2]), metadata["log_position"]
    if metadata.get("scn") is not None:
        parts = metadata["rs_id"].removeprefix("0x").split(".") if metadata["rs_id"] else ["0"] * 3
        return metadata["scn"], *(int(part, 16) for part in parts), metadata["ssn"]
    lsn = metadata.get("lsn")
    if lsn and "/" in lsn:
        high, low = lsn.split("/")
        return (int(high, 16) << 32 | int(low, 16),)
    return tuple(int(part, 16) for part in lsn.split(":")) if lsn else ()


def orders(reads: list[Read], *, backfill: str) -> list[tuple[Any, ...]]:
    """The place of each event in the order of its source, seen file by file."""
    found: list[tuple[Any, ...]] = []
    before: Read | None = None
    for read in reads:
        moment, place = read.millis, numbers(read.metadata)
        half = read.metadata["change_type"] == "UPDATE-DELETE"
        if before is not None and before.metadata["change_type"] == "UPDATE-DELETE":
            if before.file == read.file and numbers(before.metadata) == place:
                moment = before.millis
        phase = int(not read.is_backfill) if backfill == "before_cdc" else 0
        if phase and any(place):
            # the position in the log alone decides
            moment = 0
        found.append((phase, moment, place, int(not half)))
        before = read
    return found


def replay(
    reads: list[Read], *, backfill: str = "before_cdc"
) -> dict[Claim, dict[tuple[Any, ...], dict[str, Any]]]:
    """The last row of every key of every table that has a key."""
    last: dict[tuple[Claim, tuple[Any, ...]], tuple[tuple[Any, ...], Read]] = {}
    for read, order in zip(reads, orders(reads, backfill=backfill), strict=True):
        names = read.metadata.get("primary_keys", read.metadata.get("replication_index"))
        if not names:
            continue
        by_case = {name.lower(): name for name in read.event["payload"]}
        row = read.event["payload"]
        key = tuple(repr(row[by_case[name.lower()]]) for name in names)
        known = last.get((read.claim, key))
        if known is None or order > known[0]:
            last[read.claim, key] = (order, read)
    tables: dict[Claim, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for (claim, key), (_, read) in last.items():
        rows = tables.setdefault(claim, {})
        if not read.metadata["is_deleted"]:
            rows[key] = read.event["payload"]
    return tables


def typed(value: Any, carried: str) -> Any:
    """A value from a file of either format as the simulator's truth has it."""
    if value is None:
        return None
    match carried, value:
        case "decimal", float() | int():
            return Decimal(repr(value))
        case "number", _:
            return Decimal(value)
        case "json", dict() | list():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        case "bytes", str():
            return base64.b64decode(value)
        case "date", str():
            return date.fromisoformat(value)
        case "time", str():
            return time.fromisoformat(value)
        case "time_interval", _:
            return timedelta(microseconds=value)
        case "datetime", {"date": days, "time": micros}:
            return EPOCH + timedelta(days=days, microseconds=micros)
        case "datetime", str():
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        case "timestamp" | "timestamp_tz", str():
            return datetime.fromisoformat(value)
        case "timestamp_tz", {"timestamp": moment}:
            return moment
        case _:
            return value


def same_rows(
    found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]], carried: dict[str, str]
) -> bool:
    """Whether two tables hold the same rows, in whatever order."""
    read = [{name: typed(row.get(name), kind) for name, kind in carried.items()} for row in found]
    return sorted(map(text, read)) == sorted(map(text, expected))


def text(row: dict[str, Any]) -> str:
    """Equal for equal rows: decimals without their zeros, moments in one zone."""
    plain = {}
    for name, value in row.items():
        if isinstance(value, Decimal):
            value = ("decimal", str(value.normalize()))
        elif isinstance(value, datetime):
            value = value.astimezone(UTC)
        plain[name] = repr(value)
    return json.dumps(plain, sort_keys=True)
