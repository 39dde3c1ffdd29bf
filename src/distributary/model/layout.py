"""Where things live in a lake. Pure: nothing here touches a file.

<lake>/<table>                                    tables, the dead letters among them
<lake>/_distributary/ledger/{batches,tables,schemas}
<lake>/_distributary/pipelines/<name>/pipeline.json
<lake>/_distributary/pipelines/<name>/decided-<lane>.json    the newest manifest, once more
<lake>/_distributary/pipelines/<name>/removal.json           a reset or clean that is not finished
<lake>/_distributary/pipelines/<name>/catalog.json           what the catalog has of its tables
<lake>/_distributary/restore.json                            a backup that is being put back
<lake>/_distributary/removed/                                folders that are on their way out
<lake>/_distributary/grants/<name>.json
<lake>/_distributary/iceberg.db                   which metadata is a table's, for Iceberg
<lake>/_distributary/names/<table>.json           which type has the name
<lake>/_distributary/pipelines/<name>/parked/<table>/<lane>-<batch>-<application>/
"""

from __future__ import annotations

import hashlib
import re

HOME = "_distributary"
LEDGER_TABLES = ("batches", "tables", "schemas")

# lower case only: on some file systems `Games` and `games` are one folder
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")


def join(base: str, *parts: str) -> str:
    """Joins a path or an address (`s3://bucket/lake`) with names below it."""
    stem = base.rstrip("/") or "/"
    return "/".join([stem.rstrip("/"), *parts]) if parts else stem


def folder_name(name: str) -> str:
    """A folder for any name from outside: readable, safe, and never shared by two names."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    # the dot keeps these apart from every plain name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_UNSAFE.sub('-', name.lower()).strip('-')[:60] or 'x'}.{digest}"


def ledger_table(lake: str, table: str) -> str:
    """The folder of one of the ledger's tables."""
    return join(lake, HOME, "ledger", table)


def pipelines(lake: str) -> str:
    """The folder that holds one folder per pipeline."""
    return join(lake, HOME, "pipelines")


def pipeline(lake: str, name: str) -> str:
    """A pipeline's own folder."""
    return join(pipelines(lake), folder_name(name))


def pipeline_file(lake: str, name: str) -> str:
    """The file in which a pipeline says what it is."""
    return join(pipeline(lake, name), "pipeline.json")


def removed(lake: str) -> str:
    """Where folders go whose removal takes a while: nobody looks for a table there."""
    return join(lake, HOME, "removed")


def tombstones(lake: str, table: str) -> str:
    """Where it is remembered which rows of a merged table were removed."""
    return join(lake, HOME, "tombstones", table)


def hidden_log(lake: str, table: str) -> str:
    """Where the changes of a table are until they are merged, if no log of them is kept."""
    return join(lake, HOME, "changes", table)


def iceberg_catalog(lake: str) -> str:
    """The catalog of Iceberg tables that are in no other one."""
    return join(lake, HOME, "iceberg.db")


def names(lake: str) -> str:
    """Where it is written down which type has which table name."""
    return join(lake, HOME, "names")


def parked(lake: str, name: str) -> str:
    """The folder of a pipeline's parked files, out of the reach of any VACUUM."""
    return join(pipeline(lake, name), "parked")


def table(lake: str, name: str) -> str:
    """The folder of a table, given its (already safe) name."""
    return join(lake, name)


def inside(lake: str, path: str) -> str:
    """The path in the lake of a folder that was written down with the lake before it.

    A lake that was moved, copied or is addressed from elsewhere holds it under the same name. What
    was written down may be anything: the answer is always in the lake, and empty for the lake.
    """
    stem = join(lake, "")
    if path.startswith(stem):
        below = path[len(stem) :]
    else:
        _, home, rest = path.rpartition(f"/{HOME}/")
        below = f"{HOME}/{rest}" if home else path.rstrip("/").rpartition("/")[2]
    return "/".join(part for part in below.split("/") if part not in ("", ".", ".."))


def place(lake: str, path: str) -> str:
    """Where a folder is that was written down with the lake before it; always in this lake."""
    return join(lake, inside(lake, path))
