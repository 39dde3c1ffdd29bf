"""One owner per checkpoint: a claim with an epoch, kept alive by a heartbeat.

A claim is a file `claims/<epoch>.json`, created exclusively, so that of two processes that want the
same epoch one loses. The highest epoch owns the checkpoint. A process holds its claim as long as
that file is its own, by a word that no other process knows, and no higher one is there. Whoever
does not is fenced, and must neither publish nor prune: a checkpoint that was reset or put back
from a copy may have the same epochs again, but not the same claims.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from distributary.engine.checkpoint import create_exclusively
from distributary.errors import FencedError, LakeUnavailableError, OwnedError

CLAIMS = "claims"
_UNKNOWN_LEASE = 60.0
"""Seconds, for a claim that cannot be read."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named so that another process and a person can recognise it."""

    epoch: int
    host: str
    pid: int
    process_started: float
    """Tells the process from a later one with the same number."""
    claimed_at: float
    lease: float
    nonce: str = ""
    """Tells the claim from another one of the same epoch."""

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine, which a person can look at and stop."""
        return self.host == socket.gethostname()

    def describe(self) -> str:
        """`process 4711 on laptop`."""
        return f"process {self.pid} on {self.host}" if self.pid else "an unknown process"

    def how_to_stop(self) -> str:
        """`stop it first (kill 4711)`, or on which machine that can be done."""
        if not self.pid:
            return f"wait until its lease of {self.lease:.0f} s has run out"
        if self.is_here:
            return f"stop it first (kill {self.pid}), or wait until it has ended"
        return (
            f"stop it on {self.host}, where it is process {self.pid}; if that machine is gone, "
            f"wait {self.lease:.0f} s: its claim ends by itself"
        )


def me(epoch: int, lease: float) -> Owner:
    """This process as an owner."""
    return Owner(
        epoch=epoch,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        claimed_at=time.time(),
        lease=lease,
        nonce=secrets.token_hex(8),
    )


def current_owner(checkpoint: Path) -> Owner | None:
    """The holder of the highest claim, alive or not."""
    epochs = sorted(int(p.stem) for p in (checkpoint / CLAIMS).glob("[0-9]*.json"))
    return _owner(_claim_path(checkpoint, epochs[-1])) if epochs else None


def _owner(path: Path) -> Owner | None:
    """Who wrote a claim; of one that a power cut has emptied only the epoch is known."""
    try:
        text = path.read_text()
        written = path.stat().st_mtime
    except FileNotFoundError:
        return None
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return Owner(int(path.stem), "", 0, 0.0, claimed_at=written, lease=_UNKNOWN_LEASE)


def is_alive(checkpoint: Path, owner: Owner) -> bool:
    """Whether an owner still runs: asked of the system on this host, of its heartbeat elsewhere.

    A stopped (SIGSTOP) process does not count as alive: it cannot know how long it was away.
    """
    if _released_path(checkpoint, owner.epoch).exists():
        return False
    try:
        last = _beat_path(checkpoint, owner.epoch).stat().st_mtime
    except FileNotFoundError:
        last = owner.claimed_at
    fresh = time.time() - last <= owner.lease
    if not owner.is_here:
        return fresh
    try:
        process = psutil.Process(owner.pid)
        same = abs(process.create_time() - owner.process_started) < 1
        running = process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    return same and running and fresh


def living_owner(checkpoint: Path) -> Owner | None:
    """The process that works on a checkpoint now, if one does."""
    owner = current_owner(checkpoint)
    return owner if owner is not None and is_alive(checkpoint, owner) else None


def state_of(checkpoint: Path) -> str:
    """`running`, `stopped` (said good-bye), `crashed` (did not), or `new`; for `status`."""
    owner = current_owner(checkpoint)
    if owner is None:
        return "new"
    if is_alive(checkpoint, owner):
        return "running"
    return "stopped" if _released_path(checkpoint, owner.epoch).exists() else "crashed"


def liveness(checkpoint: str) -> str:
    """The same for whoever knows a checkpoint by name only; `unknown` where there is none."""
    folder = Path(checkpoint)
    return state_of(folder) if folder.is_dir() else "unknown"


class Claim:
    """This process's hold on a checkpoint, from `take` to `release`."""

    def __init__(self, checkpoint: Path, owner: Owner) -> None:
        self.checkpoint = checkpoint
        self.owner = owner
        # asked for before every commit: not to be put together each time
        self._own, self._next = (
            str(_claim_path(checkpoint, epoch)) for epoch in (owner.epoch, owner.epoch + 1)
        )
        self._seen: tuple[int, int, int] | None = None
        """The file of this claim as it was when it was last read."""
        self._beaten = time.monotonic()
        """When the heartbeat last reached the checkpoint."""
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="claim-heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def take(cls, checkpoint: Path, *, lease: float) -> Claim:
        """Claim the next epoch, unless the present owner is alive (OwnedError)."""
        while True:
            refuse_owned(checkpoint)
            holder = current_owner(checkpoint)
            owner = me(holder.epoch + 1 if holder else 1, lease)
            path = _claim_path(checkpoint, owner.epoch)
            if create_exclusively(path, json.dumps(asdict(owner))):
                _forget_old_claims(checkpoint, owner.epoch)
                return cls(checkpoint, owner)

    @property
    def epoch(self) -> int:
        """The number under which this process works."""
        return self.owner.epoch

    def check(self) -> None:
        """Raise FencedError if the claim is lost; called before anything that lasts."""
        late = time.monotonic() - self._beaten > self.owner.lease
        try:
            # a process that was paused may be late without having failed
            own = self._renewed() if late else self._is_own()
        except OSError as error:
            if not late:
                raise LakeUnavailableError(
                    "cannot see whether the checkpoint is still claimed by this process",
                    where=str(self.checkpoint),
                    evidence=error.strerror or type(error).__name__,
                    next_step="check that the folder can be reached",
                ) from error
            raise FencedError(
                "this process could not renew its claim for longer than its lease",
                where=str(self.checkpoint),
                evidence=f"lease {self.owner.lease:.0f} s; {error.strerror}",
                next_step="nothing is lost: check that the folder can be written, and run again",
            ) from error
        if not own or os.path.exists(self._next):
            raise _fenced(self)

    def _is_own(self) -> bool:
        """Whether the file of this epoch is still this process's own."""
        try:
            found = os.stat(self._own)
        except FileNotFoundError:
            return False
        seen = found.st_ino, found.st_mtime_ns, found.st_ctime_ns
        # to read it again before each of a thousand commits would cost more than to look at it
        if seen != self._seen:
            owner = _owner(Path(self._own))
            if owner is None or owner.nonce != self.owner.nonce:
                return False
            self._seen = seen
        return True

    def release(self) -> None:
        """Say good-bye, so that the next start need not wait for the lease."""
        self._ended.set()
        # what cannot be written now runs out by itself
        with suppress(OSError):
            if self._is_own():
                _released_path(self.checkpoint, self.epoch).touch()

    def _beat(self) -> None:
        while not self._ended.is_set():
            # a disk may be full or away for a moment: `check` knows for how long it was
            with suppress(OSError):
                self._renewed()
            self._ended.wait(self.owner.lease / 5)

    def _renewed(self) -> bool:
        """Tell that this process is there; False where the claim is no longer its own."""
        began = time.monotonic()
        own = self._is_own()
        if own:
            _beat_path(self.checkpoint, self.epoch).touch()
            self._beaten = began
        return own


def refuse_owned(checkpoint: Path) -> None:
    """Raise OwnedError where a process works on a checkpoint now."""
    holder = living_owner(checkpoint)
    if holder is not None:
        raise OwnedError(
            f"this pipeline is already run by {holder.describe()}",
            where=str(checkpoint),
            evidence=f"epoch {holder.epoch}, claimed {time.time() - holder.claimed_at:.0f} s ago",
            next_step=holder.how_to_stop(),
            owner=holder.describe(),
        )


def _fenced(claim: Claim) -> FencedError:
    now = current_owner(claim.checkpoint)
    other = now is not None and now.nonce != claim.owner.nonce
    if now is not None and other:
        return FencedError(
            "another process has taken this checkpoint over while this one was silent",
            where=str(claim.checkpoint),
            evidence=f"own epoch {claim.epoch}; now: epoch {now.epoch}, {now.describe()}",
            next_step="nothing is lost: let the other process go on, or stop it first",
        )
    return FencedError(
        "this checkpoint was reset or removed while this process was silent",
        where=str(claim.checkpoint),
        evidence=f"the claim of epoch {claim.epoch} is gone, and nobody has claimed it since",
        next_step="nothing more is written under the life that was ended: run again",
    )


def _forget_old_claims(checkpoint: Path, epoch: int) -> None:
    """Keep the last claims only: a fenced process needs a newer one, not every older one."""
    for path in (checkpoint / CLAIMS).glob("[0-9]*"):
        if int(path.name.split(".")[0]) < epoch - 3:
            path.unlink(missing_ok=True)


def _claim_path(checkpoint: Path, epoch: int) -> Path:
    return checkpoint / CLAIMS / f"{epoch:010d}.json"


def _beat_path(checkpoint: Path, epoch: int) -> Path:
    return checkpoint / CLAIMS / f"{epoch:010d}.beat"


def _released_path(checkpoint: Path, epoch: int) -> Path:
    return checkpoint / CLAIMS / f"{epoch:010d}.released"
