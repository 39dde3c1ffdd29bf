"""What is done to a pipeline, by name. Each leaves a lake that a run must bring in order again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from distributary.engine.kill_points import KILL, PAUSE, KillPoint
from tests.faults.drivers import Driver
from tests.faults.feeds import Shape
from tests.faults.oracle import ids_of
from tests.faults.rounds import Order, Round, mounts_permitted
from tests.faults.trusted import experiments

_MERGING = (KillPoint.BEFORE_MERGE, KillPoint.BEFORE_AGGREGATES)
_KILLED = [m for m in KillPoint if m not in _MERGING]
_LEASE = 5.0
"""Seconds, as the pipeline files of the harness have it."""


def kill(one: Round) -> None:
    """SIGKILL at a named moment of a batch, or at any moment of a run that goes on."""
    one.send(fresh_type=one.dice.random() < 0.3)
    merging = [KillPoint.BEFORE_MERGE] if one.shape.is_change_data else []
    moments = [*_KILLED, *merging]
    moment = one.choose(*moments, *["any_moment"] * len(moments))
    if moment != "any_moment":
        one.done(one.start(variables={KILL: moment}))
        return
    driver = one.start(continuous=True)
    driver.wait_for("batch_started")
    for _ in range(one.dice.randint(1, 3)):
        time.sleep(one.dice.uniform(0.0, 1.0))
        one.send(30)
    time.sleep(one.dice.uniform(0.0, 2.0))
    one.done(driver, driver.kill(group=one.dice.random() < 0.7))


def stop(one: Round) -> None:
    """SIGSTOP; another instance runs; the first wakes up and must leave without a trace."""
    one.send()
    driver = _stopped(one)
    if driver is None:
        return
    one.send(fresh_type=True)
    one.settle()
    one.watch_settled()
    _wake(one, driver)
    one.watch_settled()


def stop_reset(one: Round) -> None:
    """SIGSTOP; everything is reset with its tables and read again; the first wakes up."""
    one.send()
    driver = _stopped(one)
    if driver is None:
        return
    before = _epoch(one)
    one.done(one.command(["reset", str(one.site.file), "--with-tables", "--yes"]))
    one.settle()
    while _epoch(one) < before:
        # until an owner has the number that the first one had
        one.settle()
    _wake(one, driver)


def _epoch(one: Round) -> int:
    return max(int(p.stem) for p in one.site.checkpoint.glob("claims/*.json"))


def _stopped(one: Round) -> Driver | None:
    """A run that goes on, stopped at a named moment, as it settles a batch, or at any moment."""
    moments = [KillPoint.AFTER_STAGE, KillPoint.AFTER_MANIFEST, KillPoint.BEFORE_SETTLE]
    how = one.choose(*moments, "any_moment", *([] if one.shape.on_store else ["after_ledger"]))
    if how in moments:
        driver = one.start(continuous=True, variables={PAUSE: how})
        return _if_stopped(one, driver)
    driver = one.start(continuous=True)
    if how == "after_ledger":
        # the batch is in the ledger and not yet in the checkpoint
        log = one.site.lake / "_distributary" / "ledger" / "batches" / "_delta_log"
        before, deadline = _entries(log), time.monotonic() + 180
        while _entries(log) == before and time.monotonic() < deadline and not driver.ended:
            time.sleep(0.0005)
    elif driver.wait_for("batch_started"):
        time.sleep(one.dice.uniform(0.0, 2.0))
    driver.signal(signal.SIGSTOP)
    return _if_stopped(one, driver)


def _if_stopped(one: Round, driver: Driver) -> Driver | None:
    if driver.wait_until_stopped():
        return driver
    one.done(driver)
    return None


def _entries(folder: Path) -> int:
    return len(os.listdir(folder)) if folder.exists() else 0


def _wake(one: Round, driver: Driver) -> None:
    _go_on(driver)
    # one that has nothing to do looks for nothing: now it has
    one.send(30)
    for _ in range(30):
        if driver.ended:
            break
        _go_on(driver)
    else:
        one.broken("a run that was overtaken goes on after it woke up")
        driver.signal(signal.SIGTERM)
    outcome = one.done(driver)
    one.report.refusals[outcome.code or f"EXIT_{outcome.exit}"] += 1


def _go_on(driver: Driver, seconds: float = 2.0) -> None:
    """SIGCONT, again and again: a moment at which it stops may come more than once."""
    deadline = time.monotonic() + seconds
    driver.signal(signal.SIGCONT)
    while driver.wait_until_stopped(max(0.0, deadline - time.monotonic())):
        driver.signal(signal.SIGCONT)


def second(one: Round) -> None:
    """Another instance while one runs: it must be turned away, by name."""
    one.send()
    driver = one.start(continuous=True)
    if driver.wait_for("batch_settled"):
        one.send()
        _turned_away(one, driver)
    one.done(driver, driver.stop())


def _turned_away(one: Round, driver: Driver) -> None:
    outcome = one.done(one.start())
    one.report.refusals[outcome.code or f"EXIT_{outcome.exit}"] += 1
    if not driver.ended and outcome.code != "CHECKPOINT_OWNED":
        one.broken(f"a second instance was let in beside the first: {outcome.code or outcome.exit}")


def reset_killed(one: Round) -> None:
    """`reset --with-tables` is killed in the middle; then comes the same again, or just a run."""
    folder = one.site.lake
    there = len(list(folder.iterdir())) + len(list(one.site.progress.iterdir()))
    goal = there - one.dice.randint(1, max(1, there - 4))
    driver = one.command(["reset", str(one.site.file), "--with-tables", "--yes"])
    while not driver.ended:
        progress = one.site.progress
        left = _entries(folder) + (_entries(progress) if progress.exists() else 0)
        if left <= goal:
            driver.signal(signal.SIGKILL, group=True)
            break
        time.sleep(0.0002)
    one.done(driver)
    if one.choose("reset_again", "run_next") == "reset_again":
        one.done(one.command(["reset", str(one.site.file), "--with-tables", "--yes"]))


def disk_full(one: Round) -> None:
    """No room on the lake's disk for a while."""
    ballast = one.site.lake / "_ballast"

    def fill() -> None:
        with ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                return

    _while_the_disk_is(one, fill, ballast.unlink)


def inodes_gone(one: Round) -> None:
    """No room for the name of one file more."""
    folder = one.site.lake / "_ballast"
    folder.mkdir()

    def fill() -> None:
        try:
            for number in range(100_000):
                (folder / str(number)).touch()
        except OSError:
            return

    _while_the_disk_is(one, fill, lambda: shutil.rmtree(folder))


def read_only(one: Round) -> None:
    """The lake can only be read for a while; then a second instance must be turned away."""
    _while_the_disk_is(
        one, lambda: _remount(one.site.lake, "ro"), lambda: _remount(one.site.lake, "rw")
    )


def _while_the_disk_is(one: Round, ill: Callable[[], None], well: Callable[[], None]) -> None:
    one.send()
    driver = one.start(continuous=True)
    driver.wait_for("batch_settled")
    one.fixes["disk"] = well
    ill()
    one.send()
    time.sleep(one.dice.uniform(3.0, 6.0))
    one.fixes.pop("disk")()
    # longer than a claim holds without a heartbeat
    time.sleep(2 * _LEASE)
    if not driver.ended:
        _turned_away(one, driver)
    one.done(driver, driver.stop())


def _remount(folder: Path, how: str) -> None:
    for _ in range(2000):
        # refused while a file is open for writing
        command = ["mount", "-o", f"remount,bind,{how}", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.005)
    raise AssertionError(done.stderr)


def vacuum(one: Round) -> None:
    """Somebody's VACUUM without retention takes files that are decided and not yet committed."""
    one.send()
    batch = max((int(p.stem) for p in _manifests(one)), default=-1) + 1
    driver = one.start(continuous=True, variables={PAUSE: f"{KillPoint.AFTER_MANIFEST}:{batch}"})
    for _ in range(1 if one.choose("once", "twice") == "once" else 2):
        if not driver.wait_until_stopped(120):
            break
        for table in _delta_tables(one):
            _vacuum(one, table)
        driver.signal(signal.SIGCONT)
        time.sleep(0.3)
    _go_on(driver, 10.0)
    driver.wait_for("batch_settled", seconds=60)
    if driver.ended:
        outcome = one.done(driver)
        one.broken(f"a run that goes on ended after a VACUUM: {outcome.code or outcome.exit}")
    else:
        one.done(driver, driver.stop())


def _manifests(one: Round) -> list[Path]:
    return list(one.checkpoints()[0].glob("manifests/*.json"))


def _vacuum(one: Round, table: str) -> None:
    place = _open(one, table)
    place.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def optimize(one: Round) -> None:
    """Somebody puts files together while batches are committed."""
    _beside_a_run(one, lambda table: _open(one, table).optimize.compact())


def delete(one: Round) -> None:
    """Somebody removes rows: they stay removed, whatever comes after."""
    table = one.dice.choice([t for t in _delta_tables(one) if t.startswith("silver_")])
    before = set(ids_of(one.lake.read(table)))
    _open(one, table).delete(f"n % 3 = {one.dice.randrange(3)}")
    one.book.take_away("silver", before - set(ids_of(one.lake.read(table))))
    one.send()


def restore(one: Round) -> None:
    """Somebody sets a table back to an older version: what is gone stays gone."""
    table = one.dice.choice([t for t in _delta_tables(one) if t.startswith("silver_")])
    place = _open(one, table)
    newest, before = place.version(), set(ids_of(one.lake.read(table)))
    place.restore(max(0, newest - one.dice.randint(1, 2)))
    gone = before - set(ids_of(one.lake.read(table)))
    one.book.take_away("silver", gone)

    def put_back() -> None:
        _open(one, table).restore(newest)
        one.book.removed["silver"] -= gone

    one.fixes["table"] = put_back
    one.send()


def _beside_a_run(one: Round, act: Callable[[str], object]) -> None:
    driver = one.start(continuous=True)
    for _ in range(3):
        one.send(40)
        for table in one.dice.sample(_delta_tables(one), 2):
            try:
                act(table)
            except Exception as error:
                # the pipeline was quicker: that is the other one's bad luck
                if "ommit" not in str(error):
                    raise
        time.sleep(one.dice.uniform(0.2, 2.0))
    driver.wait_for("batch_settled")
    one.done(driver, driver.stop())


def clock_back(one: Round) -> None:
    """The owner's heartbeat looks old, as after a change of the clock: another takes over."""
    one.send()
    driver = one.start(continuous=True)
    driver.wait_for("batch_settled")
    one.send()
    for beat in one.site.progress.glob("*/claims/*.beat"):
        os.utime(beat, (time.time() - 3600,) * 2)
    other = one.start()
    for _ in range(200):
        for beat in one.site.progress.glob("*/claims/*.beat"):
            os.utime(beat, (time.time() - 3600,) * 2)
        if other.ended:
            break
        time.sleep(0.05)
    one.done(other)
    one.done(driver, driver.stop())


def low_memory(one: Round) -> None:
    """Too little memory for the processes of a run."""
    one.send()
    limit = one.dice.choice([1, 2, 3, 4, 6]) << 30
    one.done(one.start(prefix=["prlimit", f"--as={limit}"]))


def _tables(one: Round) -> list[str]:
    """Tables of this machine that records end up in."""
    return [t for t in one.lake.tables() if t != "wrapper"]


def _delta_tables(one: Round) -> list[str]:
    return [t for t in _tables(one) if _is_delta(one, t)]


def _is_delta(one: Round, table: str) -> bool:
    return one.shape.on_store or (one.site.lake / table / "_delta_log").exists()


def _open(one: Round, table: str) -> DeltaTable:
    return DeltaTable(f"{one.site.address}/{table}", storage_options=dict(one.site.options))


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done, and the shapes it can be done to."""

    act: Callable[[Round], None]
    fits: Callable[[Shape], bool] = lambda shape: True
    mounts: bool = False
    """Needs a disk of its own for the lake."""


def _one_job(shape: Shape) -> bool:
    return shape.jobs == "run"


def _on_disk(shape: Shape) -> bool:
    return not shape.on_store


def _delta_records(shape: Shape) -> bool:
    return shape.is_delta and not shape.is_change_data


FAULTS = {
    "kill": Fault(kill),
    "stop": Fault(stop, _one_job),
    "stop-reset": Fault(stop_reset, _one_job),
    "second": Fault(second, _one_job),
    "reset-killed": Fault(reset_killed, lambda s: _one_job(s) and _on_disk(s)),
    "disk-full": Fault(disk_full, _one_job, mounts=True),
    "inodes": Fault(inodes_gone, _one_job, mounts=True),
    "read-only": Fault(read_only, _one_job, mounts=True),
    "vacuum": Fault(vacuum, lambda s: _delta_records(s) and _one_job(s)),
    "optimize": Fault(optimize, lambda shape: shape.is_delta),
    "delete": Fault(delete, _delta_records),
    "restore": Fault(restore, _delta_records),
    "clock": Fault(clock_back, _one_job),
    "memory": Fault(low_memory, _one_job),
}
FAULTS |= {name: Fault(act, fits) for name, (act, fits) in experiments().items()}


def faults_for(shape: Shape, only: Sequence[str]) -> list[Order]:
    """Return what can be done to a shape here; of `only`, in its order, if something is named."""
    possible = {
        name: fault
        for name, fault in FAULTS.items()
        if fault.fits(shape) and (not fault.mounts or mounts_permitted())
    }
    if not only:
        return [Order(name, fault.act) for name, fault in possible.items()]
    return [
        Order(name, fault.act, variants)
        for ask in only
        for name, fault in possible.items()
        if (variants := wanted(ask, name)) is not None
    ]


def wanted(asked: str, name: str) -> frozenset[str] | None:
    """Return the variants of a fault that are asked for; None if it is another one that is.

    `flip` is all that flips a bit, `flip:checkpoint` one of them, `flip:checkpoint:life` a variant.
    """
    if f"{name}:".startswith(f"{asked}:"):
        return frozenset()
    if asked.startswith(f"{name}:"):
        return frozenset(re.split("[:/]", asked.removeprefix(f"{name}:")))
    return None
