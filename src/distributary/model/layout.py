"""The paths of a lake. Nothing here does I/O.

<lake>/<table>                                    tables, including dead letters
<lake>/_distributary/ledger/{batches,tables,schemas}
<lake>/_distributary/pipelines/<name>/pipeline.json
<lake>/_distributary/pipelines/<name>/decided-<lane>.json    a copy of the newest manifest
<lake>/_distributary/pipelines/<name>/removal.json           an unfinished reset or clean
<lake>/_distributary/pipelines/<name>/catalog.json           its tables' entries in the catalog
<lake>/_distributary/pipelines/<name>/iceberg.json           how far its tables' Iceberg mirrors are
<lake>/<table>/_iceberg/metadata/                 the Iceberg mirror of a Delta table
<lake>/_distributary/cuts/                        pinned cuts, and how long cuts are kept
<lake>/_distributary/erased/                      what was erased, and must not come back
<lake>/_distributary/restore.json                            a backup that is being restored
<lake>/_distributary/removed/                                folders that are being removed
<lake>/_distributary/grants/<name>.json
<lake>/_distributary/iceberg.db                   the catalog of Iceberg tables
<lake>/_distributary/names/<table>.json           the type that owns the name
<lake>/_distributary/pipelines/<name>/parked/<table>/<lane>-<batch>-<application>/
"""

from __future__ import annotations

import hashlib
import re

from distributary.store.base import is_remote

HOME = "_distributary"
LEDGER_TABLES = ("batches", "tables", "schemas")

# lower case only, because `Games` and `games` are one folder on some file systems
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")


def join(base: str, *parts: str) -> str:
    """Join a path or an address (`s3://bucket/lake`) with names below it."""
    stem = base.rstrip("/") or "/"
    return "/".join([stem.rstrip("/"), *parts]) if parts else stem


def folder_name(name: str) -> str:
    """Return a folder name for any text: readable, safe, and never shared by two texts."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    # no plain name has a dot, so the two kinds cannot collide
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_UNSAFE.sub('-', name.lower()).strip('-')[:60] or 'x'}.{digest}"


def ledger_table(lake: str, table: str) -> str:
    """Return the folder of one table of the ledger."""
    return join(lake, HOME, "ledger", table)


def pipelines(lake: str) -> str:
    """Return the folder that holds one folder per pipeline."""
    return join(lake, HOME, "pipelines")


def pipeline(lake: str, name: str) -> str:
    """Return the folder of one pipeline."""
    return join(pipelines(lake), folder_name(name))


def pipeline_file(lake: str, name: str) -> str:
    """Return the path of the document that describes a pipeline."""
    return join(pipeline(lake, name), "pipeline.json")


def cuts(lake: str) -> str:
    """Return the folder of the documents that keep cuts readable."""
    return join(lake, HOME, "cuts")


def erased(lake: str) -> str:
    """Return the folder of the documents about erased records."""
    return join(lake, HOME, "erased")


def is_ledger(folder: str) -> bool:
    """Return whether a folder is that of one of the ledger's tables."""
    return f"/{HOME}/ledger/" in folder


def removed(lake: str) -> str:
    """Return the folder for tables that are being removed, where no reader looks for tables."""
    return join(lake, HOME, "removed")


def tombstones(lake: str, table: str) -> str:
    """Return the folder that records the removed rows of a merged table."""
    return join(lake, HOME, "tombstones", table)


def hidden_log(lake: str, table: str) -> str:
    """Return the folder of a table's changes until they are merged, when no log is kept."""
    return join(lake, HOME, "changes", table)


def iceberg_catalog(lake: str) -> str:
    """Return the path of the catalog of Iceberg tables that have no other catalog."""
    return join(lake, HOME, "iceberg.db")


def names(lake: str) -> str:
    """Return the folder that records which type owns which table name."""
    return join(lake, HOME, "names")


def parked(lake: str, name: str) -> str:
    """Return the folder of parked files in a lake on a disk, which no VACUUM touches."""
    return join(pipeline(lake, name), "parked")


def parking(lake: str, name: str, checkpoint: str) -> str:
    """Return the folder in which a pipeline's batches wait for tables; empty if unknown.

    Without a disk it is in the checkpoint: a store that refuses a table's files may refuse copies
    of them too.
    """
    if not is_remote(lake):
        return parked(lake, name)
    return f"{checkpoint}/parked" if checkpoint else ""


def table(lake: str, name: str) -> str:
    """Return the folder of a table, given its (already safe) name."""
    return join(lake, name)


def inside(lake: str, path: str) -> str:
    """Return the path, relative to the lake, of a folder that was recorded with the lake's path.

    The lake may have been moved or copied, or have another address now. The recorded path is not
    trusted: the result is always inside the lake, and empty for the lake itself.
    """
    stem = join(lake, "")
    if path.startswith(stem):
        below = path[len(stem) :]
    else:
        _, home, rest = path.rpartition(f"/{HOME}/")
        below = f"{HOME}/{rest}" if home else path.rstrip("/").rpartition("/")[2]
    return "/".join(part for part in below.split("/") if part not in ("", ".", ".."))


def place(lake: str, path: str) -> str:
    """Return the current path, always in this lake, of a folder recorded with the lake's path."""
    return join(lake, inside(lake, path))
