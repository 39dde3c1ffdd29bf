"""A round: one lake that is fed, faulted, run to the end as its messages advise, and judged."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.drivers import Driver, Outcome
from tests.faults.feeds import SHAPES, Feed, Shape, Site, feed_for, write_file
from tests.faults.oracle import Book, Finding, Kind, Lake, judge

_TRIES = 5
"""Runs after a fault, each followed by what its message advises, before it is called stuck."""
_LAKE_SIZE, _LAKE_FILES = "256m", 20_000
_DEFECTS = frozenset({"INTERNAL", "STUCK"})
AGAIN = frozenset(
    {
        # the run itself says: run again
        *("CHECKPOINT_OWNED", "CHECKPOINT_FENCED", "SHARD_WAITING", "STAGED_FILE_MISSING"),
        *("BATCH_FAILED", "ACCOUNTING_BROKEN", "SPARK_FAILED", "PROCESS_DIED"),
    }
)
DISK = frozenset({"LAKE_UNAVAILABLE", "SOURCE_UNAVAILABLE", "COMMIT_FAILED", "SPARK_FAILED"})
STATE = frozenset({"CHECKPOINT_DIVERGED", "CHECKPOINT_INVALID"})
LOST = frozenset({"CHECKPOINT_LOST"})
TABLE = frozenset({"TABLE_BEHIND"})
SOURCE = frozenset({"SOURCE_REPLACED", "SOURCE_DATA_LOST"})


@dataclass(frozen=True, slots=True)
class Servers:
    """What rounds share: a broker and an object store, where they were started."""

    kafka: str = ""
    store: Any = None


@dataclass(slots=True)
class Report:
    """What became of a round."""

    seed: int
    shape: str
    faults: list[str] = field(default_factory=list)
    kills: int = 0
    runs: int = 0
    records: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kept: str = ""

    def line(self) -> str:
        refused = " ".join(f"{code}:{n}" for code, n in sorted(self.refusals.items())) or "none"
        verdict = "LOST=DOUBLE=ALIEN=0" if not self.findings else "; ".join(self.findings)
        return (
            f"seed {self.seed} {self.shape} [{' '.join(self.faults)}] {self.runs} runs, "
            f"{self.kills} kills, {self.records} records, refusals {refused}, "
            f"{self.seconds:.0f} s: {verdict}"
        )


class Round:
    """One lake, its feed, the processes on it, and what was found."""

    def __init__(self, shape: Shape, seed: int, *, folder: Path, servers: Servers) -> None:
        self.shape, self.seed, self.folder = shape, seed, folder
        self.dice = random.Random(f"{seed}/{shape.name}")
        self.report = Report(seed, shape.name)
        self.fixes: dict[str, Callable[[], None]] = {}
        """What a person can do once a message says so: put `state` or `table` back, free `disk`."""
        self.wanted: frozenset[str] = frozenset()
        """Variants that were asked for by name, such as `before_settle`."""
        self._drivers: list[Driver] = []
        self._logs = 0
        self._settled: dict[str, int] = {}
        self._replaced = False
        folder.mkdir(parents=True)
        (folder / "lake").mkdir()
        self.mounted = mounts_permitted() and _mount(folder / "lake")
        options: Mapping[str, str] = {}
        address = str(folder / "lake")
        files = None
        if shape.on_store:
            options, files = servers.store.options, servers.store.files
            address = f"s3://changes/faults-{seed}-{os.getpid()}-{time.time_ns()}"
        self.site = Site(folder, address, options, servers.kafka)
        self.book = Book(layers=shape.layers)
        self.lake = Lake(address, options, files, None if files is None else self.site.progress)
        self.feed: Feed = feed_for(shape, self.site, self.book, seed=seed, dice=self.dice)
        write_file(shape, self.site, self.feed)

    # what a fault does

    def choose(self, *variants: str) -> str:
        """One variant of a fault: the one that was asked for, else by chance; it is reported."""
        # thrown in any case, so that what comes after is the same
        thrown = self.dice.choice(variants)
        variant = next((v for v in variants if v in self.wanted), thrown)
        self.report.faults[-1] += f"{'/' if ':' in self.report.faults[-1] else ':'}{variant}"
        return variant

    def send(self, records: int | None = None, *, fresh_type: bool = False) -> None:
        """A portion more at the source."""
        self.feed.send(records or self.dice.randint(40, 120), fresh_type=fresh_type)

    def start(
        self,
        *,
        continuous: bool = False,
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Driver:
        """A process on the lake, as a user starts it."""
        files = self.files()
        if continuous and (self.shape.jobs != "run"):
            arguments = ["up", *map(str, files), "--every", "1s"]
        else:
            how = "--continuous" if continuous else "--available-now"
            arguments = ["run", str(files[0]), how]
        return self.command([*arguments, "--log-format", "json"], variables, prefix)

    def command(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Driver:
        self._logs += 1
        self.report.runs += 1
        log = self.folder / f"{self._logs:03d}-{arguments[0]}"
        driver = Driver([*arguments, "--json"], log=log, variables=variables, prefix=prefix)
        self._drivers.append(driver)
        return driver

    def done(self, driver: Driver, outcome: Outcome | None = None) -> Outcome:
        """The end of a process, and what no process may ever do."""
        outcome = outcome or driver.end()
        if outcome.was_killed:
            self.report.kills += 1
        if outcome.traceback:
            self.broken(f"a traceback on standard error, see {outcome.log.name}")
        if outcome.code in _DEFECTS:
            self.broken(f"{outcome.code} from {driver.arguments[0]}: {outcome.said[:200]}")
        return outcome

    def run(self) -> Outcome:
        """Everything that is there, without a fault; the first process that fails is told."""
        for file in self.files():
            outcome = self.done(
                self.command(["run", str(file), "--available-now", "--log-format", "json"])
            )
            if outcome.exit:
                break
        return outcome

    def files(self) -> list[Path]:
        """The pipeline files: one, or one for each job in the order in which they read."""
        if self.shape.jobs != "shards":
            return [self.site.file]
        folder = self.folder / "games.shards"
        if not folder.exists():
            out = str(self.folder / "units")
            options = ["--target", "systemd", "--shards", "2", "--out", out]
            self.done(self.command(["install", str(self.site.file), *options]))
        return sorted(folder.glob("*.yaml"), key=lambda path: (len(path.stem), path.stem))

    def checkpoints(self) -> list[Path]:
        """The folders of progress that there are."""
        return sorted(p.parent for p in self.site.progress.glob("*/claims"))

    def copy_state(self, name: str) -> Path:
        """A copy of all progress, as a backup would have it."""
        copy = self.folder / "copies" / f"{name}-{self._logs}"
        shutil.copytree(self.site.progress, copy, symlinks=True)
        return copy

    def put_state_back(self, copy: Path) -> None:
        shutil.rmtree(self.site.progress)
        shutil.copytree(copy, self.site.progress, symlinks=True)
        self._settled.clear()

    def forget_settled(self) -> None:
        """What was settled is no longer known from outside: somebody took a mark away."""
        self._settled.clear()

    def broken(self, what: str) -> None:
        self._found(Finding(Kind.BROKEN, self.report.faults[-1], 1, what))

    def replace_source(self) -> None:
        self.feed.replace_source()
        self._replaced = True

    # what comes after a fault

    def settle(self) -> bool:
        """Run to the end; a refusal is answered as its message advises. True if it got there."""
        heedless = self.dice.random() < 0.5
        if self.wanted & {"heedless", "heeding"}:
            heedless = "heedless" in self.wanted
        for _ in range(_TRIES):
            outcome = self.run()
            if outcome.exit == 0:
                self._free_disk()
                return True
            code = outcome.code or ("PARKED" if outcome.exit == 1 else f"EXIT_{outcome.exit}")
            self.report.refusals[code] += 1
            if code in _DEFECTS:
                return False
            if heedless:
                # whoever starts it again, a person or a scheduler, has not read the message
                heedless = False
                self.report.faults[-1] += "/heedless"
                continue
            if not self._advised(code):
                self.broken(f"no way is known out of {code}: {outcome.said[:300]}")
                return False
        self.broken(f"still refused after {_TRIES} runs: {code}: {outcome.said[:300]}")
        return False

    def check(self) -> bool:
        """Ask the oracle; True if nothing is wrong."""
        self.report.records = self.feed.made
        self.watch_settled()
        for finding in judge(self.book, self.lake):
            self._found(finding)
        return not self.report.findings

    def watch_settled(self) -> None:
        """A batch that was settled stays settled, as long as nobody puts an old state back."""
        for folder in self.checkpoints():
            try:
                life = (folder / "life.json").read_text()
                now = max(int(p.stem) for p in (folder / "manifests").glob("*.settled"))
            except (FileNotFoundError, ValueError):
                continue
            if now < self._settled.get(life, -1):
                self.broken(f"settled went back from {self._settled[life]} to {now}")
            self._settled[life] = now

    def close(self, keep: Path) -> None:
        """Keep everything of a round that failed, nothing of one that did not."""
        for driver in self._drivers:
            if not driver.ended:
                driver.kill()
            driver.sweep()
        self._free_disk()
        self.book.save(self.folder / "book.json")
        if self.report.findings:
            kept = keep / f"{self.shape.name}-{self.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            self.report.kept = str(kept)
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.site.lake)], check=True)
        shutil.rmtree(self.folder)

    def _advised(self, code: str) -> bool:
        """Do what the documentation of a code says; False if it is not known."""
        acted = False
        if code in DISK or code == "PARKED":
            acted = self._mend("disk") or code != "PARKED"
        if code in TABLE | DISK or code == "PARKED":
            acted = self._mend("table") or acted
        if code == "PARKED":
            return self._resume()
        if code in STATE:
            return self._mend("state") or self._mend("table") or self._recover()
        if code in LOST:
            return self._recover()
        if code in SOURCE:
            return self.reset()
        return acted or code in AGAIN

    def _mend(self, what: str) -> bool:
        fix = self.fixes.pop(what, None)
        if fix is not None:
            fix()
        return fix is not None

    def _free_disk(self) -> None:
        self._mend("disk")
        self.fixes.clear()

    def _resume(self) -> bool:
        tables = sorted({table for table, _ in self.lake.parked()})
        for table in tables:
            arguments = ["resume", table, "--lake", self.site.address, "--file"]
            self.done(self.command([*arguments, str(self.site.file)]))
        return True

    def _recover(self) -> bool:
        """Take the position up from the lake, or, where it says so, read all files again."""
        for file in self.files():
            outcome = self.done(self.command(["recover", str(file)]))
            if outcome.code == "CHECKPOINT_LOST":
                self.report.refusals["recover: CHECKPOINT_LOST"] += 1
                outcome = self.done(self.command(["reset", str(file), "--yes"]))
            # of jobs that share a stream, some may have theirs
            if outcome.exit and outcome.code != "NOT_FOUND":
                self.report.refusals[f"recover: {outcome.code}"] += 1
                return False
        return True

    def reset(self) -> bool:
        """A new life; with a new source the rows of the old one stay, else they come again."""
        more = [] if self._replaced else ["--with-tables"]
        done = [self.command(["reset", str(file), "--yes", *more]) for file in self.files()]
        return all(self.done(driver).exit == 0 for driver in done)

    def _found(self, finding: Finding) -> None:
        text = str(finding)
        if text not in self.report.findings:
            self.report.findings.append(text)


Order = tuple[Callable[[Round], None], frozenset[str]]
"""What is done, and the variants of it that were asked for."""


def play(
    shape: str,
    seed: int,
    *,
    folder: Path,
    keep: Path,
    servers: Servers,
    faults: Mapping[str, Order],
    count: int,
) -> Report:
    """One round: feed, and `count` times a fault, a run to the end, and the oracle."""
    began = time.monotonic()
    one = Round(SHAPES[shape], seed, folder=folder / f"{shape}-{seed}", servers=servers)
    try:
        one.send()
        one.report.faults.append("start")
        if one.settle() and one.check():
            for name in _order(one.dice, list(faults), count):
                act, one.wanted = faults[name]
                one.report.faults.append(name)
                act(one)
                if not one.settle() or not one.check():
                    break
    except Exception:
        # the next rounds may still find something; this one is kept
        one.broken(f"the harness itself failed: {traceback.format_exc()}")
    finally:
        one.report.faults = one.report.faults[1:]
        one.report.seconds = time.monotonic() - began
        one.close(keep)
    return one.report


def _order(dice: random.Random, names: list[str], count: int) -> list[str]:
    """Every fault comes before one comes again."""
    order: list[str] = []
    while len(order) < count:
        order += dice.sample(names, len(names))
    return order[:count]


def mounts_permitted() -> bool:
    """Whether this process has a name space of mounts to itself."""
    return os.environ.get("FAULTS_MOUNTS") == "private"


def _mount(folder: Path) -> bool:
    """A small disk for the lake: one that can be filled, and made read-only."""
    options = f"size={_LAKE_SIZE},nr_inodes={_LAKE_FILES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "faults", str(folder)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
