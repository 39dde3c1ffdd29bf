"""The facts that the envelopes in a log state about their events, for every format.

A log has events of any format, of this version and of earlier ones; the merge asks their envelopes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, truths
from distributary.decode.change.datastream.origin import kind_of
from distributary.model.change import ChangeSettings

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)", re.ASCII)
_GTIDS = ("__source_gtid", "__gtid", "gtid")
"""The members with the id of the transaction, in events without a member `source`."""
_SOURCES = ("source", "source_metadata")
"""The members in which Debezium and Datastream describe the source of an event."""
_LOG_FILES = ("file", "log_file", "binlog_file")
_FLAT_LOG_FILES = ("__source_file", "__file")
_MAXWELL_POSITION = re.compile(r"(.+\.\d+):\d+", re.ASCII)


class Transaction(NamedTuple):
    """The global id of a transaction: the same in the logs of all servers that have it."""

    domain: str
    """Within it numbers go up: MariaDB's domain, or the server of MySQL that committed it."""
    server: str
    """The server that committed it, not the one whose log it is read from."""
    number: int


def transaction_of(envelope: Mapping[str, Any]) -> Transaction | None:
    """Read the id of an event's transaction from the envelope; None where there is none."""
    text = transaction_id(envelope)
    if not text:
        return None
    if mariadb := _MARIADB_GTID.fullmatch(text):
        domain, server, number = mariadb.groups()
        return Transaction(domain, server, int(number))
    server, _, last = text.rpartition(":")
    return Transaction(server, server, int(last)) if server and last.isdecimal() else None


def transaction_id(envelope: Mapping[str, Any]) -> str:
    """Return the id of an event's transaction as its envelope has it; empty where it has none."""
    return _described(envelope, ("gtid",)) or _first(envelope, _GTIDS)


def log_name(envelope: Mapping[str, Any]) -> str:
    """Return the name of the binary log without the file's number; empty where there is none.

    All files of one log share the name: events with different names are of different logs.
    """
    file = _described(envelope, _LOG_FILES) or _first(envelope, _FLAT_LOG_FILES)
    if not file and (maxwell := _MAXWELL_POSITION.fullmatch(_first(envelope, ("position",)))):
        file = maxwell[1]
    name, _, number = file.rpartition(".")
    return name if number.isdecimal() else ""


def _described(envelope: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first text that the description of the source has under one of the names."""
    sources = (envelope.get(member) for member in _SOURCES)
    texts = (_first(source, names) for source in sources if isinstance(source, Mapping))
    return next((text for text in texts if text), "")


def _first(members: Mapping[str, Any], names: Sequence[str]) -> str:
    values = (members.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), "")


_SNAPSHOTS = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last")
"""Debezium's values of `snapshot` for rows of a whole snapshot, as opposed to an incremental
one."""


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
