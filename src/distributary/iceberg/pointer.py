"""The place that names the current metadata of a mirror: the seam of Iceberg's catalogs.

Here is the one without a catalog: a folder with numbered documents and a version hint, as readers
expect it that open a table by its path. The catalogs with a database or a server are in
`catalog/mirror_catalog.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from distributary.delta.tables import OvertakenError
from distributary.iceberg.iceberg_columns import Json
from distributary.iceberg.metadata import (
    BrokenMirrorError,
    Updates,
    check_metadata,
    logged,
)
from distributary.store.base import Store

HOME = "_iceberg"
"""The folder of a mirror in its table's folder: Delta's own VACUUM leaves such folders alone."""
FOLDER = f"{HOME}/metadata"
HINT = f"{FOLDER}/version-hint.text"
EARLIER_FOLDER = "metadata"
"""The folder of the metadata of tables that an earlier version wrote."""
_DOCUMENT = re.compile(r"v(\d{1,18})\.metadata\.json")


@dataclass(frozen=True, slots=True)
class Current:
    """The current metadata of a mirror."""

    metadata: Json
    location: str
    """The address of the document."""
    token: Any = None
    """The token that the pointer needs to replace it."""


@dataclass(frozen=True, slots=True)
class MirrorCommit:
    """The next state of a mirror, in both forms."""

    after: Json
    updates: Updates
    requirements: Sequence[Json]
    location: str
    """The address of the table."""


class Pointer(ABC):
    """The name of one mirror's current metadata, which is replaced only if it is unchanged."""

    @abstractmethod
    def load(self) -> Current | None:
        """Return the current metadata; None if there is none. Raises BrokenMirrorError."""

    @abstractmethod
    def commit(self, before: Current | None, commit: MirrorCommit) -> Sequence[str]:
        """Replace the metadata, and return documents that are no longer needed.

        Raises OvertakenError, with nothing changed, if it is no longer `before`.
        """

    def forget(self) -> None:
        """Take away what stands in the way of a new table: an entry whose metadata is lost."""
        return

    def settle(self, current: Current) -> None:
        """Finish what a killed process has left half done after its commit."""
        return


class VersionHint(Pointer):
    """The pointer without a catalog: `vN.metadata.json`, and a file with the number N."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self) -> Current | None:
        """Return the newest document, whatever the hint says; None if there is none."""
        number = self._newest()
        if number is None:
            return None
        name = _name(number)
        try:
            document = orjson.loads(self._store.read(name))
        except (FileNotFoundError, orjson.JSONDecodeError) as error:
            raise BrokenMirrorError(f"{name} cannot be read: {type(error).__name__}") from error
        return Current(check_metadata(document), f"{self._store.address}/{name}", number)

    def commit(self, before: Current | None, commit: MirrorCommit) -> Sequence[str]:
        """Create the next document, then the hint; readers between the two see the older one."""
        # Documents of a mirror that was lost may still be there: their numbers are not used again.
        number = 1 + (max(self._numbers(), default=0) if before is None else before.token)
        after, gone = commit.after, list[str]()
        if before is not None:
            after, gone = logged(after, before.metadata, before.location)
        data = orjson.dumps(after)
        if self._store.create(_name(number), data) is None:
            raise OvertakenError(f"{_name(number)} is taken")
        self._store.write(HINT, str(number).encode())
        return gone

    def settle(self, current: Current) -> None:
        """Write the hint of the newest document, if a killed process has not written it."""
        if self._hinted() != current.token:
            self._store.write(HINT, str(current.token).encode())

    def _hinted(self) -> int | None:
        try:
            text = self._store.read(HINT).strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isdigit() and len(text) < 19 else None

    def _newest(self) -> int | None:
        number = self._hinted()
        if number is None or self._store.look(_name(number)) is None:
            return max(self._numbers(), default=None)
        while self._store.look(_name(number + 1)) is not None:
            number += 1
        return number

    def _numbers(self) -> list[int]:
        numbers = (document_number(info.name) for info in self._store.files(FOLDER))
        return [number for number in numbers if number is not None]


def document_number(name: str) -> int | None:
    """Return the number of a document of a mirror without a catalog; None for another file."""
    match = _DOCUMENT.fullmatch(name.rpartition("/")[2])
    return None if match is None else int(match[1])


def _name(number: int) -> str:
    return f"{FOLDER}/v{number}.metadata.json"
