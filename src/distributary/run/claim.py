"""One owner per checkpoint: a claim with an epoch, kept alive by a heartbeat.

A claim is a file `claims/<epoch>.json`, created exclusively, so that of two processes that want the
same epoch one loses. The highest epoch owns the checkpoint. Whoever finds a higher epoch than its
own has been taken over: it is fenced, and must neither publish nor prune.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from distributary.errors import FencedError, OwnedError
from distributary.run.writing import create_exclusively, replace_atomically

CLAIMS = "claims"


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

    def describe(self) -> str:
        """`process 4711 on laptop`."""
        return f"process {self.pid} on {self.host}"


def me(epoch: int, lease: float) -> Owner:
    """This process as an owner."""
    return Owner(
        epoch=epoch,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        claimed_at=time.time(),
        lease=lease,
    )


def current_owner(checkpoint: Path) -> Owner | None:
    """The holder of the highest claim, alive or not."""
    epochs = sorted(int(p.stem) for p in (checkpoint / CLAIMS).glob("[0-9]*.json"))
    if not epochs:
        return None
    return Owner(**json.loads(_claim_path(checkpoint, epochs[-1]).read_text()))


def is_alive(checkpoint: Path, owner: Owner) -> bool:
    """Whether an owner still runs: asked of the system on this host, of its heartbeat elsewhere.

    A stopped (SIGSTOP) process does not count as alive: it cannot know how long it was away.
    """
    if _released_path(checkpoint, owner.epoch).exists():
        return False
    beat = _beat_path(checkpoint, owner.epoch)
    last = beat.stat().st_mtime if beat.exists() else owner.claimed_at
    fresh = time.time() - last <= owner.lease
    if owner.host != socket.gethostname():
        return fresh
    try:
        process = psutil.Process(owner.pid)
        same = abs(process.create_time() - owner.process_started) < 1
        running = process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    return same and running and fresh


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
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="claim-heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def take(cls, checkpoint: Path, *, lease: float) -> Claim:
        """Claim the next epoch, unless the present owner is alive (OwnedError)."""
        (checkpoint / CLAIMS).mkdir(parents=True, exist_ok=True)
        while True:
            holder = current_owner(checkpoint)
            if holder is not None and is_alive(checkpoint, holder):
                raise _owned(checkpoint, holder)
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
        """Raise FencedError if somebody has taken over; called before anything that lasts."""
        if os.path.exists(self._own) and not os.path.exists(self._next):
            return
        fenced_by = current_owner(self.checkpoint)
        raise FencedError(
            "another process has taken this checkpoint over while this one was silent",
            where=str(self.checkpoint),
            evidence=f"own epoch {self.epoch}; now: "
            + (f"epoch {fenced_by.epoch}, {fenced_by.describe()}" if fenced_by else "none"),
            next_step="nothing is lost: let the other process go on, or stop it first",
        )

    def release(self) -> None:
        """Say good-bye, so that the next start need not wait for the lease."""
        self._ended.set()
        path = _released_path(self.checkpoint, self.epoch)
        if path.parent.exists():
            replace_atomically(path, str(time.time()), sync=False)

    def _beat(self) -> None:
        beat = _beat_path(self.checkpoint, self.epoch)
        while not self._ended.is_set():
            if not beat.parent.exists():
                return
            beat.touch()
            self._ended.wait(self.owner.lease / 5)


def _owned(checkpoint: Path, holder: Owner) -> OwnedError:
    return OwnedError(
        f"this pipeline is already run by {holder.describe()}",
        where=str(checkpoint),
        evidence=f"epoch {holder.epoch}, claimed {time.time() - holder.claimed_at:.0f} s ago",
        next_step=f"stop that process (kill {holder.pid}), or wait until it has ended",
        owner=holder.describe(),
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
