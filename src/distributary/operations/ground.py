"""Tests of the stores below a lake and a checkpoint, which leave nothing behind.

The engine relies on three properties of a store: if two processes create one file, one of them
fails; a file that has changed is not replaced; its clock agrees with the clock of this machine. A
store without one of them would lose or double records silently, so they are tested.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from distributary.engine.progress.claim import Claim
from distributary.errors import DistributaryError, OwnedError
from distributary.model import layout
from distributary.store.base import Store, at, local_folder

_MOST_SKEW_SECONDS = 5.0
_RACERS = 8
_CONDITIONAL = "of two writers of one file, one fails"
_OTHER_STORE = (
    "a store without conditional puts cannot be used: take S3, Google Cloud Storage, Azure, or a "
    "newer version of your own server; on a file system, one with hard links"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of one test."""

    name: str
    passed: bool
    tried: str
    found: str
    needed: str = ""
    fix: str = ""


def prove_store(place: str, address: str) -> Iterator[Proof]:
    """Test the permissions, conditional puts and clock of the store of `place`."""
    with scratch(address) as store:
        rights = _rights(place, address, store)
        yield rights
        if not rights.passed:
            return
        for kind, prove in ((f"{place} puts", _puts), (f"{place} clock", _clock)):
            try:
                yield prove(kind, address, store)
            except OSError as error:
                # it was allowed a moment ago
                yield Proof(kind, False, f"wrote to {address}", _words(error), fix="try again")


def prove_claim(checkpoint: str, *, lease: float) -> Proof:
    """Test that one process at a time can own the checkpoint, and another can take over."""
    tried = f"claimed a folder below {checkpoint} twice at once, released it, claimed it again"
    needed = "one owner at a time"
    try:
        with scratch(checkpoint) as store:
            first = Claim.take(store, lease=lease)
            try:
                first.check()
                try:
                    Claim.take(store, lease=lease).release()
                except OwnedError:
                    refused = True
                else:
                    refused = False
            finally:
                first.release()
            second = Claim.take(store, lease=lease)
            second.release()
    except (DistributaryError, OSError) as error:
        return Proof("claim", False, tried, _words(error), needed, _OTHER_STORE)
    if not refused or second.epoch <= first.epoch:
        result = "two processes could own it at once" if not refused else "it cannot be taken over"
        return Proof("claim", False, tried, result, needed, _OTHER_STORE)
    result = f"the second was refused, and the next one owns epoch {second.epoch}"
    return Proof("claim", True, tried, result, needed)


@contextmanager
def scratch(address: str) -> Iterator[Store]:
    """Create a folder with a random name below an address, and remove it afterwards."""
    name, folder = f"doctor-{secrets.token_hex(8)}", local_folder(address)
    if folder is None:
        store = at(f"{address.rstrip('/')}/{layout.HOME}/{name}")
    else:
        # a test does not create a lake that does not exist yet
        path = Path(folder).absolute()
        existing = next(p for p in (path, *path.parents) if p.is_dir())
        store = at(existing / f".distributary-{name}")
    try:
        yield store
    finally:
        # the test of permissions has reported a folder that cannot be removed
        with suppress(OSError):
            store.remove_folder()


def _rights(place: str, address: str, store: Store) -> Proof:
    """Write, list, read and remove a file."""
    tried = f"wrote, listed, read and removed a file below {address}"
    doing = "write"
    try:
        store.write("rights", b"?")
        doing = "list"
        if [file.name for file in store.files()] != ["rights"]:
            raise FileNotFoundError("a file that was written is not listed")
        doing = "read"
        if store.read("rights") != b"?":
            raise OSError("a file has other content than was written")
        doing = "remove"
        store.remove("rights")
        if store.look("rights") is not None:
            raise OSError("a file still exists after its removal")
    except OSError as error:
        folder = local_folder(address)
        fix = (
            f"allow these credentials to {doing}: lake.storage_options, or the machine's own role"
            if folder is None
            else f"chmod u+rwx {Path(store.address).parent}"
        )
        needed = "rights to write, list, read and remove"
        return Proof(place, False, tried, f"cannot {doing}: {_words(error)}", needed, fix)
    return Proof(place, True, tried, f"{address} can be written, listed, read and cleared")


def _puts(name: str, address: str, store: Store) -> Proof:
    """Test exclusive creation, and replacement of an unchanged file only."""
    tried = (
        f"created a file below {address} {_RACERS} times at once, "
        "and tried to replace it with an outdated version"
    )

    def refused(found: str) -> Proof:
        return Proof(name, False, tried, found, _CONDITIONAL, _OTHER_STORE)

    contents = [f"writer {number}".encode() for number in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as pool:
        versions = list(pool.map(lambda data: store.create("created", data), contents))
    winners = [data for data, won in zip(contents, versions, strict=True) if won is not None]
    if len(winners) != 1:
        return refused(f"{len(winners)} of {_RACERS} creates of one name were accepted")
    if store.create("created", b"too late") is not None:
        return refused("an existing file was created again")
    if store.read("created") != winners[0]:
        return refused("the first file was replaced")
    stale = next(version for version in versions if version is not None)
    fresh = store.swap("created", b"replaced", unchanged=stale)
    if fresh is None:
        return refused("an unchanged file could not be replaced")
    if store.swap("created", b"stale", unchanged=stale) is not None:
        return refused("a changed file was replaced")
    if store.read("created") != b"replaced":
        return refused("a replacement was made although it was refused")
    return Proof(
        name,
        True,
        tried,
        f"1 of {_RACERS} creates succeeded, and the replacement of a changed file was refused",
        _CONDITIONAL,
    )


def _clock(name: str, address: str, store: Store) -> Proof:
    """Compare the store's clock with this machine's, within the time of a request."""
    before = time.time()
    store.write("clock", b"?")
    after = time.time()
    file = store.look("clock")
    if file is None:
        raise FileNotFoundError("a written file does not exist")
    # most stores return whole seconds
    skew = max(0.0, int(before) - file.modified, file.modified - after)
    return Proof(
        name,
        skew <= _MOST_SKEW_SECONDS,
        f"wrote a file below {address} and compared its time with the clock here",
        f"{skew:.1f} s apart from the clock of this machine",
        f"{_MOST_SKEW_SECONDS:.0f} s at most",
        "set the clock, for example with timedatectl set-ntp true",
    )


def _words(error: Exception) -> str:
    if isinstance(error, DistributaryError):
        return f"{error.what}: {error.evidence}" if error.evidence else error.what
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
