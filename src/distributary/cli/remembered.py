"""What the Tab key read from a table, kept for as long as the table is at the same version.

Reading a ledger costs 0.1 s, most of it the import of what reads it, and people press Tab several
times in a row. An entry names the table's newest commit, by file, time and size: a commit is never
written twice, so as long as it is the newest, what was read of the table is what it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import platformdirs

from distributary import durable

_COMMIT = re.compile(r"\d{20}\.json")


class Remembered:
    """The names that one question to one table gives."""

    def __init__(self, table: str, question: str) -> None:
        self._commit = None if "://" in table else _newest_commit(Path(table))
        key = hashlib.sha256(f"{Path(table).absolute()}\n{question}".encode()).hexdigest()
        folder = platformdirs.user_state_path("distributary") / "completion"
        self._file = folder / f"{key[:32]}.json"

    def names(self) -> list[str] | None:
        """The names, if nobody has written to the table since they were read."""
        if self._commit is None:
            return None
        try:
            kept = json.loads(self._file.read_bytes())
            names = kept["names"] if kept["commit"] == self._commit else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return [str(name) for name in names] if isinstance(names, list) else None

    def keep(self, names: list[str]) -> None:
        """Keep names that were read after this object was made; not being able to costs time only.

        What was committed meanwhile may be among them; then the next look finds a newer commit.
        """
        if self._commit is None:
            return
        content = json.dumps({"commit": self._commit, "names": names})
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            durable.replace(self._file, content.encode(), durable=False)


def _newest_commit(table: Path) -> list[str | int] | None:
    try:
        with os.scandir(table / "_delta_log") as entries:
            newest = max((e for e in entries if _COMMIT.fullmatch(e.name)), key=lambda e: e.name)
        found = newest.stat()
    except (OSError, ValueError):
        return None
    return [newest.name, found.st_mtime_ns, found.st_size, found.st_ino]
