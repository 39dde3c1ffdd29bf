"""Datastream's JSON files: an event a line, or all of them in one array."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from distributary.simulate.cdc.kinds import Carried, canonical, micros
from distributary.simulate.cdc.plan import CdcFormat, CdcPlan
from distributary.simulate.cdc.shapes import Row, Shape

TIME_STYLES = 4
"""In how many ways the times of an event are written."""


def json_file(events: Iterable[bytes], plan: CdcPlan) -> bytes:
    """A whole file."""
    if plan.format is CdcFormat.JSON_ARRAY:
        data = b"[" + b",".join(events) + b"]"
    else:
        data = b"".join(event + b"\n" for event in events)
    # without the time of day, which gzip would write into the file
    return gzip.compress(data, mtime=0) if plan.gzip else data


def json_event(envelope: dict[str, Any], shape: Shape, *, time_style: int) -> bytes:
    """One event: always the same bytes, in whichever file it comes again."""
    times = {
        name: _envelope_time(envelope[name], time_style)
        for name in ("read_timestamp", "source_timestamp")
    }
    built = envelope | times | {"payload": _values(envelope["payload"], shape)}
    return json.dumps(built, ensure_ascii=False, separators=(",", ":")).encode()


def _values(row: Row, shape: Shape) -> Row:
    carried = {column.name: column.carried for column in shape.columns}
    return {name: _value(value, carried[name]) for name, value in row.items()}


def _value(value: Any, carried: Carried) -> Any:
    if value is None:
        return None
    match carried:
        case Carried.DECIMAL:
            return float(value)
        case Carried.JSON:
            return json.loads(value)
        case Carried.BYTES:
            return base64.b64encode(value).decode()
        case Carried.TIME_INTERVAL:
            return micros(value)
        case Carried.DATETIME:
            return value.replace(tzinfo=None).isoformat(timespec="microseconds")
        case Carried.TIMESTAMP_TZ:
            return value.isoformat(timespec="microseconds")
        case _:
            return canonical(value)


def _envelope_time(millis: int, style: int) -> str | int:
    moment = datetime.fromtimestamp(millis // 1_000, UTC).replace(
        microsecond=millis % 1_000 * 1_000, tzinfo=None
    )
    match style:
        case 0:
            return moment.isoformat(timespec="milliseconds") + "Z"
        case 1:
            return moment.isoformat(timespec="milliseconds")
        case 2:
            return moment.isoformat(" ", timespec="milliseconds")
        case _:
            return millis
