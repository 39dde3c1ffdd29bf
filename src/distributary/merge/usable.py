"""What a table must be like for us to replace its files, and what we say when something fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributary.errors import DistributaryError, PublishError
from distributary.merge.snapshot import Snapshot
from distributary.publish.failures import as_publish_error
from distributary.stores.known import local_folder

_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""What a table may ask of its writers, beyond the oldest protocol, for us to be one."""


def folder_of(path: str) -> str:
    """The folder on this machine that a table's path means."""
    folder = local_folder(path)
    if folder is None:
        raise PublishError(
            "cannot merge into a table that is not in a folder of this machine",
            where=path,
            evidence="the path names another store",
            next_step="put the lake on a file system that all workers see",
            reason="store",
        )
    return folder


def refuse_unusable(snapshot: Snapshot, table: str) -> None:
    """Raises PublishError for a table that only another engine can change."""
    _refuse(snapshot, table, unusable(snapshot))


def refuse_unreadable(snapshot: Snapshot, table: str) -> None:
    """Raises PublishError for a table whose files do not tell all of its rows."""
    features = {*snapshot.protocol.get("readerFeatures", ())} - _FEATURES
    old = snapshot.protocol["minReaderVersion"] == 1
    _refuse(snapshot, table, "" if old or not features else f"features: {sorted(features)}")


def _refuse(snapshot: Snapshot, table: str, reason: str) -> None:
    if reason:
        raise PublishError(
            f"table {table} needs an engine that knows more of the protocol",
            where=snapshot.folder,
            evidence=reason,
            next_step="use Spark for this table, or take the feature off it",
            reason="features",
        )


def unusable(snapshot: Snapshot) -> str:
    """Why rows of this table cannot be replaced by files that we write; empty when they can."""
    wanted = {*snapshot.protocol.get("readerFeatures", ())}
    wanted |= {*snapshot.protocol.get("writerFeatures", ())}
    old = snapshot.protocol["minReaderVersion"] == 1 and snapshot.protocol["minWriterVersion"] <= 2
    if not old and (not wanted or wanted - _FEATURES):
        return f"features: {', '.join(sorted(wanted - _FEATURES)) or 'of an old writer version'}"
    if snapshot.metadata.get("partitionColumns"):
        return "it is partitioned"
    if '"delta.invariants"' in snapshot.metadata["schemaString"]:
        return "columns have invariants"
    if snapshot.property("delta.appendOnly") == "true":
        return "rows may only be added: delta.appendOnly"
    return ""


@contextmanager
def merging(path: str, *, doing: str) -> Iterator[None]:
    """Errors of the libraries below become ours."""
    try:
        yield
    except DistributaryError:
        raise
    except Exception as error:
        raise as_publish_error(error, doing=doing, path=path) from error
