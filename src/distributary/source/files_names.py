"""Which names below the root of a files source are change files.

A folder of a minute, `<object>/yyyy/mm/dd/hh/mm/`, is Datastream's own: every file in it counts.
Elsewhere only a suffix says that a file is meant, because buckets hold other things too. Hidden
names, empty files, the markers that stand for folders, and files that hold a schema never count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

_MINUTE = re.compile(
    r"(?:(.*)/)?([0-9]{4})/([0-9]{2})/([0-9]{2})/([0-9]{2})/([0-9]{2})/[^/]+", re.DOTALL
)
_SCHEMA = re.compile(r".*(\.avsc|[._-]schema(\.jsonl?)?)(\.gz)?", re.DOTALL)
_SUFFIXES = {
    "avro": (".avro",),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet",),
}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a listing shows it."""

    path: str
    """Below the root, with `/` between its parts."""
    size: int
    modified_ns: int
    whole: bool = True
    """Whether it is known to be complete: an object of a bucket, or moved into its place."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rules of one source."""

    format: str
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    start: datetime | None = None

    def __call__(self, file: FoundFile) -> bool:
        """Whether a file belongs to the source."""
        *folders, name = file.path.split("/")
        if file.size <= 0 or not name or name.startswith((".", "_")) or is_schema_name(name):
            return False
        minute = _minute_of(file.path)
        if minute is None:
            listed = name.lower().endswith(_SUFFIXES[self.format])
            hidden = any(folder.startswith((".", "_")) for folder in folders)
            return listed and not hidden and self._names(folders[0] if folders else "")
        *above, table = folders[:-5] or [""]
        # a database whose name begins with an underscore has a folder that does
        if table.startswith(".") or any(folder.startswith((".", "_")) for folder in above):
            return False
        return self._names(table) and (self.start is None or minute >= self.start)

    def _names(self, table: str) -> bool:
        """Whether the lists let a table's folder pass."""
        if self.include and not any(fnmatchcase(table, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(table, pattern) for pattern in self.exclude)


def is_schema_name(name: str) -> bool:
    """Whether a name says that the file is the schema of the files beside it."""
    return _SCHEMA.fullmatch(name.lower()) is not None


def _minute_of(path: str) -> datetime | None:
    """The minute whose folder a file is in; None where it is in no such folder."""
    found = _MINUTE.fullmatch(path)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.groups()[1:])
    try:
        return datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None
