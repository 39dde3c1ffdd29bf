"""What a lake and a checkpoint stand on, proven by trying it, with nothing left behind.

The engine believes three things of a store: that of two who create one file one loses, that a file
which is another by now is not replaced, and that its clock is about ours. A store that breaks one
of them would lose or double records without a word, so they are tried, not asked for.
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
_CONDITIONAL = "of two writers of one file one loses"
_OTHER_STORE = (
    "a store without conditional puts cannot hold it: take S3, Google Cloud Storage, Azure, or a "
    "newer version of your own server; on a file system, one with hard links"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that was tried."""

    name: str
    passed: bool
    tried: str
    found: str
    needed: str = ""
    fix: str = ""


def prove_store(place: str, address: str) -> Iterator[Proof]:
    """Rights, conditional puts and the clock of the store in which a `place` lies."""
    with scratch(address) as store:
        rights = _rights(place, address, store)
        yield rights
        if not rights.passed:
            return
        for kind, prove in ((f"{place} puts", _puts), (f"{place} clock", _clock)):
            try:
                yield prove(kind, address, store)
            except OSError as error:
                # allowed a moment ago
                yield Proof(kind, False, f"wrote to {address}", _words(error), fix="try again")


def prove_claim(checkpoint: str, *, lease: float) -> Proof:
    """Whether one process at a time can own what lies there, and the next one take over."""
    tried = f"claimed a folder below {checkpoint}, twice at once, let it go, claimed it again"
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
        found = "two processes could own it at once" if not refused else "it cannot be taken over"
        return Proof("claim", False, tried, found, needed, _OTHER_STORE)
    found = f"the second was refused, and the next one owns epoch {second.epoch}"
    return Proof("claim", True, tried, found, needed)


@contextmanager
def scratch(address: str) -> Iterator[Store]:
    """A folder below an address that nobody else knows; gone afterwards."""
    name, folder = f"doctor-{secrets.token_hex(8)}", local_folder(address)
    if folder is None:
        store = at(f"{address.rstrip('/')}/{layout.HOME}/{name}")
    else:
        # a lake that is not there yet is not made by looking at it
        path = Path(folder).absolute()
        existing = next(p for p in (path, *path.parents) if p.is_dir())
        store = at(existing / f".distributary-{name}")
    try:
        yield store
    finally:
        # who may not remove has been told so
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
            raise OSError("a file that was written reads otherwise")
        doing = "remove"
        store.remove("rights")
        if store.look("rights") is not None:
            raise OSError("a file that was removed is still there")
    except OSError as error:
        folder = local_folder(address)
        fix = (
            f"let these credentials {doing} there: lake.storage_options, or the machine's own role"
            if folder is None
            else f"chmod u+rwx {Path(store.address).parent}"
        )
        needed = "rights to write, list, read and remove"
        return Proof(place, False, tried, f"cannot {doing}: {_words(error)}", needed, fix)
    return Proof(place, True, tried, f"{address} can be written, listed, read and cleared")


def _puts(name: str, address: str, store: Store) -> Proof:
    """Exclusive creation, and replacing only what is still what was read."""
    tried = (
        f"created a file below {address} {_RACERS} times at once, "
        "and replaced it by a version that was not its own any more"
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
        return refused("a name that was taken was created again")
    if store.read("created") != winners[0]:
        return refused("what was created first was replaced")
    stale = next(version for version in versions if version is not None)
    fresh = store.swap("created", b"replaced", unchanged=stale)
    if fresh is None:
        return refused("a file that nobody had touched could not be replaced")
    if store.swap("created", b"stale", unchanged=stale) is not None:
        return refused("a version that was gone was replaced")
    if store.read("created") != b"replaced":
        return refused("a replacement that was refused was made")
    return Proof(
        name,
        True,
        tried,
        f"1 of {_RACERS} creates won, and the replacement of a version that was gone was refused",
        _CONDITIONAL,
    )


def _clock(name: str, address: str, store: Store) -> Proof:
    """The store's time against ours, as far as an answer's way lets one tell."""
    before = time.time()
    store.write("clock", b"?")
    after = time.time()
    found = store.look("clock")
    if found is None:
        raise FileNotFoundError("a file that was written is not there")
    # seconds are all that most stores tell
    skew = max(0.0, int(before) - found.modified, found.modified - after)
    return Proof(
        name,
        skew <= _MOST_SKEW_SECONDS,
        f"wrote a file below {address} and compared its time with ours",
        f"{skew:.1f} s apart from ours",
        f"{_MOST_SKEW_SECONDS:.0f} s at most",
        "set the clock, for example with timedatectl set-ntp true",
    )


def _words(error: Exception) -> str:
    if isinstance(error, DistributaryError):
        return f"{error.what}: {error.evidence}" if error.evidence else error.what
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
