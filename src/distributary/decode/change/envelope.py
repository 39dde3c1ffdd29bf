"""The facts that the envelopes in a log state about their events, for every format.

A log has events of any format, of this version and of earlier ones; the merge asks their envelopes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, truths
from distributary.decode.change.datastream.order import kind_of
from distributary.model.change import ChangeSettings

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)", re.ASCII)
_GTIDS = ("__source_gtid", "__gtid", "gtid")
"""Where events without a member `source` have the id of their transaction."""


class Transaction(NamedTuple):
    """The global id of a transaction: the same in the logs of all servers that have it."""

    domain: str
    """Within it numbers go up: MariaDB's domain, or the server of MySQL that committed it."""
    server: str
    """The server that committed it, not the one whose log it is read from."""
    number: int


def transaction_of(envelope: Mapping[str, Any]) -> Transaction | None:
    """Read the id of an event's transaction from the envelope; None where there is none."""
    source = envelope.get("source")
    given = source.get("gtid") if isinstance(source, Mapping) else None
    text = given or next((envelope[name] for name in _GTIDS if envelope.get(name)), None)
    if not isinstance(text, str):
        return None
    if mariadb := _MARIADB_GTID.fullmatch(text):
        domain, server, number = mariadb.groups()
        return Transaction(domain, server, int(number))
    server, _, last = text.rpartition(":")
    return Transaction(server, server, int(last)) if server and last.isdecimal() else None


_SNAPSHOTS = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last")
"""What Debezium says of the rows of a whole snapshot; rows of an incremental one are not here."""


def is_snapshot(envelope: Mapping[str, Any]) -> bool:
    """Return whether an event is a row of a whole snapshot."""
    source = envelope.get("source")
    return isinstance(source, dict) and source.get("snapshot") in _SNAPSHOTS


_FLAT = '{"__'
"""The beginning of the envelope of a flattened event that has further fields."""
_SOURCE_TIME = r'"__source_ts_[mun]s":-?[0-9]+[,}]'


def without_source_time(envelopes: pa.ChunkedArray) -> Mask:
    """Return which flattened events have a time that is not their source's.

    It is the time of the connector or of Kafka, and differs when the change is sent again.
    """
    flat = truths(pc.starts_with(envelopes, _FLAT))
    if flat.any():
        flat = flat & ~truths(pc.match_substring_regex(envelopes, _SOURCE_TIME))
    return flat


def is_positional(envelope: str) -> bool:
    """Return whether an event of Datastream came from a database whose changes have positions."""
    try:
        content = json.loads(envelope)
    except ValueError:
        return False
    if not isinstance(content, dict):
        return False
    method, metadata = content.get("read_method"), content.get("source_metadata")
    given = frozenset(metadata if isinstance(metadata, dict) else ())
    return bool(kind_of(method if isinstance(method, str) else None, ChangeSettings(), given))
