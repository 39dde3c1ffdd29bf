"""Ownership of a checkpoint: a claim with an epoch, kept alive by heartbeats.

A claim is a file `claims/<epoch>.json`, created exclusively: of two processes that want the same
epoch, one fails. The highest epoch owns the checkpoint. Its owner replaces the file regularly, if
it is unchanged: that is the heartbeat. A process that takes over from a silent owner first fences
the old claim in the same way, so that the old owner notices at its next heartbeat. A
process that has lost its claim must neither publish nor prune: a checkpoint that was reset or put
back from a copy may have the same epochs again, but not the same claims.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from distributary.errors import (
    CheckpointError,
    DistributaryError,
    FencedError,
    LakeUnavailableError,
    OwnedError,
)
from distributary.store.base import Store, at, reaching
from distributary.store.seal import seal, unseal

CLAIMS = "claims"
_UNKNOWN_LEASE = 60.0
"""The lease in seconds of an unreadable claim."""
_TRUSTED = 0.6
"""The part of a lease after a heartbeat in which no other process can have taken over."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a claim, described for other processes and for people."""

    epoch: int
    host: str
    pid: int
    process_started: float
    """The start time of the process, which distinguishes it from a later process with its id."""
    claimed_at: float
    lease: float
    nonce: str = ""
    """A random text, which distinguishes the claim from another one of the same epoch."""
    beat: int = 0
    """The number of heartbeats."""
    ended: str = ""
    """`released` by the owner, `fenced` by another process, or empty."""

    @property
    def is_here(self) -> bool:
        """Return whether the owner is a process of this machine, which a person can stop."""
        return self.host == socket.gethostname()

    def describe(self) -> str:
        """Format the owner: `process 4711 on laptop`."""
        return f"process {self.pid} on {self.host}" if self.pid else "an unknown process"

    def how_to_stop(self) -> str:
        """Return the next step: `stop it first (kill 4711)`, or the machine to do it on."""
        if not self.pid:
            return f"wait until its lease of {self.lease:.0f} s has run out"
        if self.is_here:
            return f"stop it first (kill {self.pid}), or wait until it has ended"
        return (
            f"stop it on {self.host}, where it is process {self.pid}; if that machine is gone, "
            f"wait {self.lease:.0f} s: its claim ends by itself"
        )


def me(epoch: int, lease: float) -> Owner:
    """Return this process as an owner."""
    # only a running process asks about processes: `status` of one that has ended does not
    import psutil

    return Owner(
        epoch=epoch,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        claimed_at=time.time(),
        lease=lease,
        nonce=secrets.token_hex(8),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The highest claim, with its file."""

    owner: Owner
    version: str
    renewed: float
    """Return when the file was written, by the store's clock."""


def _highest(checkpoint: Store) -> _Found | None:
    files = {file.name.rpartition("/")[2]: file for file in checkpoint.files(CLAIMS)}
    epochs = sorted(name for name in files if name.endswith(".json") and name[0].isdigit())
    if not epochs:
        return None
    file, epoch = files[epochs[-1]], epochs[-1].removesuffix(".json")
    # separate files of an earlier version
    before = files.get(f"{epoch}.beat")
    renewed = max(file.modified, before.modified if before else 0.0)
    try:
        owner = _owner(checkpoint.read(file.name))
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError, TypeError):
        # a damaged or emptied file: only the epoch is known
        owner = Owner(int(epoch), "", 0, 0.0, claimed_at=file.modified, lease=_UNKNOWN_LEASE)
    if f"{epoch}.released" in files:
        owner = replace(owner, ended="released")
    return _Found(owner, file.version, max(renewed, owner.claimed_at))


def current_owner(checkpoint: Store) -> Owner | None:
    """Return the owner of the highest claim, alive or not."""
    found = _highest(checkpoint)
    return found.owner if found else None


def _is_alive(found: _Found) -> bool:
    """Return whether an owner is alive: on this host by its process, elsewhere by its heartbeat.

    A paused process (SIGSTOP) does not count as alive, because it cannot know how long it was
    paused.
    """
    owner = found.owner
    if owner.ended:
        return False
    fresh = time.time() - found.renewed <= owner.lease
    if not owner.is_here:
        return fresh
    import psutil

    try:
        process = psutil.Process(owner.pid)
        same = abs(process.create_time() - owner.process_started) < 1
        running = process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    return same and running and fresh


def living_owner(checkpoint: Store) -> Owner | None:
    """Return the living owner of a checkpoint; None if there is none."""
    found = _highest(checkpoint)
    return found.owner if found is not None and _is_alive(found) else None


def state_of(checkpoint: Store) -> str:
    """Return `running`, `stopped` (claim released), `crashed` (not released) or `new`."""
    found = _highest(checkpoint)
    if found is None:
        return "new"
    if _is_alive(found):
        return "running"
    return "stopped" if found.owner.ended == "released" else "crashed"


def liveness(checkpoint: str) -> str:
    """Return the liveness of a checkpoint by its address; `unknown` if there is none."""
    store = at(checkpoint)
    try:
        return state_of(store) if store.exists() else "unknown"
    except OSError:
        return "unknown"


class Claim:
    """The claim of this process on a checkpoint, from `take` to `release`."""

    def __init__(self, checkpoint: Store, owner: Owner, version: str) -> None:
        self.checkpoint = checkpoint
        self.owner = owner
        self._version = version
        """The version of the claim's file at the last write or read."""
        self._own, self._next = (claim_name(e) for e in (owner.epoch, owner.epoch + 1))
        self._beaten = time.monotonic()
        """The time of the last successful heartbeat."""
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._heart = threading.Thread(target=self._beat, name="claim-heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def take(cls, checkpoint: Store, *, lease: float) -> Claim:
        """Claim the next epoch. Raises OwnedError if the current owner is alive."""
        with reaching(checkpoint.address):
            while True:
                holder = _highest(checkpoint)
                if holder is not None:
                    _take_from(checkpoint, holder)
                owner = me(holder.owner.epoch + 1 if holder else 1, lease)
                version = checkpoint.create(claim_name(owner.epoch), _text(owner))
                if version is not None:
                    _forget_old_claims(checkpoint, owner.epoch)
                    return cls(checkpoint, owner, version)

    @property
    def epoch(self) -> int:
        """Return the epoch of this process."""
        return self.owner.epoch

    def check(self) -> None:
        """Raise FencedError if the claim is lost; called before every durable write."""
        silent = time.monotonic() - self._beaten
        try:
            if silent > self.owner.lease:
                # a process that was paused may still own its claim
                own = self._renewed()
            elif self.checkpoint.asks_for_free:
                own = self._is_own() and not self._is_overtaken()
            else:
                # reading the file before each of a thousand commits would cost a request each
                own = silent < _TRUSTED * self.owner.lease or self._renewed()
        except OSError as error:
            # even after the lease: a process that takes over fences this claim first, so a
            # successful renewal proves that none did
            raise LakeUnavailableError(
                "cannot check whether this process still has its claim on the checkpoint",
                where=self.checkpoint.address,
                evidence=error.strerror or str(error) or type(error).__name__,
                next_step="check that the folder can be reached",
            ) from error
        if not own:
            raise _fenced(self)

    def is_held(self) -> bool:
        """Return whether this process still has the claim."""
        try:
            self.check()
        except DistributaryError:
            return False
        return True

    def release(self) -> None:
        """Release the claim, so that the next start need not wait for the lease."""
        self._ended.set()
        # if this fails, the lease expires by itself
        with suppress(OSError):
            self._renewed(ended="released")

    def _is_own(self) -> bool:
        """Return whether the file of this epoch still belongs to this process."""
        found = self.checkpoint.look(self._own)
        if found is None:
            return False
        # compares the file's status, because reading it before each of a thousand commits costs
        # more
        if found.version != self._version:
            with self._writing:
                return self._reread()
        return True

    def _is_overtaken(self) -> bool:
        """Return whether a later claim exists.

        In a bucket, a later claim always fences this one first.
        """
        return self.checkpoint.asks_for_free and self.checkpoint.look(self._next) is not None

    def _reread(self) -> bool:
        """Return whether the current file was written by this process; the lock is held."""
        found = self.checkpoint.look(self._own)
        if found is None or not _same(self.checkpoint.read(self._own), self.owner):
            return False
        self._version = found.version
        return True

    def _beat(self) -> None:
        # the claim was just written, so the first heartbeat comes after a part of the lease
        while not self._ended.wait(self.owner.lease / 5):
            # a disk may be full or away for a moment: `check` measures for how long
            with suppress(OSError):
                if not self._renewed():
                    # the claim is lost for good, and each further request to a bucket costs money
                    return

    def _renewed(self, ended: str = "") -> bool:
        """Write a heartbeat; return False if the claim is lost."""
        with self._writing:
            if self.owner.ended:
                # a heartbeat that waited for `release` must not undo it
                return False
            began = time.monotonic()
            owner = replace(self.owner, beat=self.owner.beat + 1, ended=ended)
            written = self.checkpoint.swap(self._own, _text(owner), unchanged=self._version)
            if written is None:
                # changed by a copy of files, or fenced
                if not self._reread():
                    return False
                written = self.checkpoint.swap(self._own, _text(owner), unchanged=self._version)
            if written is None or self._is_overtaken():
                return False
            self.owner, self._version, self._beaten = owner, written, began
        return True


def refuse_owned(checkpoint: Store) -> None:
    """Raise OwnedError if a checkpoint has a living owner."""
    with reaching(checkpoint.address):
        holder = living_owner(checkpoint)
    if holder is not None:
        raise _owned(checkpoint, holder)


def _owned(checkpoint: Store, holder: Owner) -> OwnedError:
    return OwnedError(
        f"this pipeline is already run by {holder.describe()}",
        where=checkpoint.address,
        evidence=f"epoch {holder.epoch}, claimed {time.time() - holder.claimed_at:.0f} s ago",
        next_step=holder.how_to_stop(),
        owner=holder.describe(),
    )


def _take_from(checkpoint: Store, holder: _Found) -> None:
    """Fence the holder of a claim, unless it is alive or has ended (OwnedError)."""
    if _is_alive(holder):
        raise _owned(checkpoint, holder.owner)
    if holder.owner.ended:
        return
    if not holder.owner.is_here and holder.owner.pid:
        # the store's clock may differ from ours: check that the owner is silent by waiting
        time.sleep(holder.owner.lease * (1 - _TRUSTED))
    fenced = _text(replace(holder.owner, ended="fenced"))
    # a process that was paused during a heartbeat holds the lock: the next epoch is enough
    with suppress(BlockingIOError):
        if checkpoint.swap(claim_name(holder.owner.epoch), fenced, unchanged=holder.version):
            return
        now = _highest(checkpoint)
        if now is not None and _is_alive(now):
            raise _owned(checkpoint, now.owner)


def _fenced(claim: Claim) -> FencedError:
    now = current_owner(claim.checkpoint)
    other = now is not None and now.nonce != claim.owner.nonce
    if now is not None and (other or now.ended == "fenced"):
        return FencedError(
            "another process has taken over this checkpoint: this one did not renew its claim",
            where=claim.checkpoint.address,
            evidence=f"own epoch {claim.epoch}; now: epoch {now.epoch}, {now.describe()}",
            next_step="nothing is lost: let the other process continue, or stop it first",
        )
    return FencedError(
        "this checkpoint was reset or removed while this process did not renew its claim",
        where=claim.checkpoint.address,
        evidence=f"the claim of epoch {claim.epoch} is gone, and no process has claimed it since",
        next_step="this process writes nothing more: run again",
    )


def _forget_old_claims(checkpoint: Store, epoch: int) -> None:
    """Remove old claims; a fenced process needs only a newer one to notice."""
    for file in checkpoint.files(CLAIMS):
        number = file.name.rpartition("/")[2].partition(".")[0]
        if number.isdigit() and int(number) < epoch - 3:
            checkpoint.remove(file.name)


def claim_name(epoch: int) -> str:
    """Return the name of a claim's file below the checkpoint."""
    return f"{CLAIMS}/{epoch:010d}.json"


def _text(owner: Owner) -> bytes:
    return seal(json.dumps(asdict(owner)).encode())


def _owner(data: bytes) -> Owner:
    return Owner(**json.loads(unseal(data, where=CLAIMS, next_step="")))


def _same(data: bytes, owner: Owner) -> bool:
    """Return whether a claim belongs to this owner and is not fenced."""
    try:
        found = _owner(data)
    except (CheckpointError, ValueError, TypeError):
        return False
    return found.nonce == owner.nonce and found.ended != "fenced"
