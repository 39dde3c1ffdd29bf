"""Old versions of tables that must stay readable: those of pinned cuts and of recent ones.

The documents are in the lake's own folder, so that every process that deletes files or shortens a
log finds them: maintenance, and the merges that tidy up after themselves.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from distributary.delta.log import load
from distributary.delta.log_reading import BrokenLogError
from distributary.errors import CheckpointError
from distributary.model import layout
from distributary.model.cut import CutPin
from distributary.store.base import Store, at
from distributary.store.seal import seal, unseal

_PIN, _KEPT = ".pin.json", ".kept.json"
_NEXT = "remove the file if no cut has to stay readable; until then nothing is deleted"


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of one table that must stay."""

    versions: frozenset[int] = frozenset()
    """The versions of pinned cuts."""
    since: float = float("inf")
    """The time since which all versions stay."""

    def oldest(self) -> int | None:
        """Return the oldest version of a pinned cut; None without one."""
        return min(self.versions, default=None)

    def paths(self, store: Store) -> frozenset[str]:
        """Return the data files of the pinned versions, and those of their deletion vectors."""
        found: set[str] = set()
        for version in self.versions:
            try:
                state = load(store, version=version)
            except (OSError, BrokenLogError):
                # the version is lost already
                continue
            for file in () if state is None else state.files.values():
                found.add(file.path)
                if file.vector is not None and file.vector.path is not None:
                    found.add(file.vector.path)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Holds:
    """All that must stay in a lake."""

    pins: tuple[CutPin, ...] = ()
    since: float = float("inf")
    versions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The versions of pinned cuts by the folders of their tables."""

    def of(self, folder: str) -> Hold:
        """Return what must stay of the table in a folder."""
        return Hold(self.versions.get(folder, frozenset()), self.since)


@dataclass(frozen=True, slots=True)
class KeptCuts:
    """How long a pipeline's cuts are kept: as its settings say."""

    age: timedelta | None = None
    last_since: datetime | None = None
    """The moment of the oldest of the last cuts that are kept, when that was found out last."""

    def since(self, now: float) -> float:
        """Return the time since which versions stay."""
        by_age = float("inf") if self.age is None else now - self.age.total_seconds()
        last = float("inf") if self.last_since is None else self.last_since.timestamp()
        return min(by_age, last)


def read_holds(lake: str) -> Holds:
    """Read what must stay in a lake now. Raises CheckpointError for a damaged document."""
    store = at(layout.cuts(lake))
    now = datetime.now(UTC)
    pins: list[CutPin] = []
    since = float("inf")
    for info in store.files():
        if info.name.endswith(_PIN):
            pin = _read_pin(store, lake, info.name)
            if pin is not None and pin.until > now:
                pins.append(pin)
        elif info.name.endswith(_KEPT):
            since = min(since, _read_kept(store, info.name).since(now.timestamp()))
    versions: dict[str, set[int]] = defaultdict(set)
    for pin in pins:
        for table in pin.cut.tables:
            if table.version is not None:
                versions[table.path].add(table.version)
    frozen = {folder: frozenset(found) for folder, found in versions.items()}
    return Holds(tuple(sorted(pins, key=lambda pin: pin.name)), since, frozen)


def hold_of(folder: str) -> Hold:
    """Read what must stay of the table in a folder of a lake. Raises CheckpointError."""
    return read_holds(folder.rpartition("/")[0]).of(folder)


def write_pin(lake: str, pin: CutPin) -> None:
    """Write a pin, in place of one of the same name."""
    store = at(layout.cuts(lake))
    text = json.dumps({"format": 1, **pin.as_dict()}).encode()
    store.write(f"{layout.folder_name(pin.name)}{_PIN}", seal(text))


def remove_pin(lake: str, name: str) -> bool:
    """Remove a pin; return whether there was one."""
    store, file = at(layout.cuts(lake)), f"{layout.folder_name(name)}{_PIN}"
    if store.look(file) is None:
        return False
    store.remove(file)
    return True


def remove_expired_pins(lake: str) -> None:
    """Remove the pins whose time is over."""
    store = at(layout.cuts(lake))
    for info in store.files():
        if info.name.endswith(_PIN):
            pin = _read_pin(store, lake, info.name)
            if pin is not None and pin.until.timestamp() < time.time():
                store.remove(info.name)


def write_kept(lake: str, pipeline: str, kept: KeptCuts) -> None:
    """Write how long the cuts of a pipeline are kept; remove the document if they are not."""
    store, name = at(layout.cuts(lake)), f"{layout.folder_name(pipeline)}{_KEPT}"
    if kept == KeptCuts():
        if store.look(name) is not None:
            store.remove(name)
        return
    document = {
        "format": 1,
        "age": None if kept.age is None else kept.age.total_seconds(),
        "last_since": None if kept.last_since is None else kept.last_since.isoformat(),
    }
    store.write(name, seal(json.dumps(document).encode()))


def _read_kept(store: Store, name: str) -> KeptCuts:
    try:
        document: dict[str, Any] = _read(store, name)
        age, last = document["age"], document["last_since"]
        return KeptCuts(
            None if age is None else timedelta(seconds=age),
            None if last is None else datetime.fromisoformat(last),
        )
    except FileNotFoundError:
        # removed meanwhile
        return KeptCuts()
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(store, name, error) from error


def _read_pin(store: Store, lake: str, name: str) -> CutPin | None:
    """Read a pin; None if it was removed meanwhile."""
    try:
        return CutPin.from_dict(_read(store, name), lake=lake)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(store, name, error) from error


def _read(store: Store, name: str) -> dict[str, Any]:
    where = f"{store.address}/{name}"
    document = json.loads(unseal(store.read(name), where=where, next_step=_NEXT))
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _damaged(store: Store, name: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        "the document of a pinned cut is damaged",
        where=f"{store.address}/{name}",
        evidence=f"{type(error).__name__}: {error}",
        next_step=_NEXT,
    )
