"""A round: one lake that is fed, faulted, run to the end as its messages advise, and judged."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from distributary.engine.kill_points import KILL
from tests.faults.drivers import Driver, Outcome
from tests.faults.feeds import SHAPES, Feed, Shape, Site, feed_for, write_file
from tests.faults.forkserver import ForkServer
from tests.faults.oracle import Book, Finding, Kind, Lake, forgive_missing, judge, make_id
from tests.faults.registry_server import serve_registry

_TRIES = 5
"""Runs after a fault, each followed by what its message advises, before it is called stuck."""
_TWIN = 500_000_000
"""Added to the seed of a round: the seed of the other lake that it takes things from."""
_LAKE_SIZE, _LAKE_FILES = "256m", 20_000
_DEFECTS = frozenset({"INTERNAL", "STUCK"})
_AGAIN = frozenset(
    {
        # the run itself says: run again
        *("CHECKPOINT_OWNED", "CHECKPOINT_FENCED", "SHARD_WAITING", "STAGED_FILE_MISSING"),
        *("BATCH_FAILED", "ACCOUNTING_BROKEN", "SPARK_FAILED", "PROCESS_DIED"),
    }
)
"""Codes after which the same command is given again."""
_COPY = re.compile(r"\b(put|restore|bring|correct|check|fix|create|register)\b", re.IGNORECASE)
"""Advice to put right what was spoilt: the newest copies are put back."""
_COMMAND = re.compile(r"`(?:distributary )?(recover|resume|rebuild|reset)\b([^`]*)`")
"""Advice to give a command; the first that is named is given."""
_LATER = 75
"""The exit code that says: try again later."""


@dataclass(frozen=True, slots=True)
class Servers:
    """What rounds share: a broker and an object store, where they were started."""

    kafka: str = ""
    store: Any = None
    forks: ForkServer | None = None


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
    notes: list[str] = field(default_factory=list)

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

    def __init__(
        self, shape: Shape, seed: int, *, folder: Path, servers: Servers, own_disk: bool = True
    ) -> None:
        self.shape, self.seed, self.folder = shape, seed, folder
        self.dice = random.Random(f"{seed}/{shape.name}")
        self.report = Report(seed, shape.name)
        self.fixes: dict[str, Callable[[], None]] = {}
        """What a person can do once a message says so: put `state` or `table` back, free `disk`."""
        self.wanted: frozenset[str] = frozenset()
        """Variants that were asked for by name, such as `before_settle`."""
        self.fault = ""
        """The name of the fault that is done."""
        self._drivers: list[Driver] = []
        self._logs = 0
        self._settled: dict[str, int] = {}
        self._servers = servers
        self._twin: Round | None = None
        self._copies = 0
        self.unread_by_runs = False
        """What was spoilt is read by no run: `verify --deep` has to tell it."""
        self.verify_may_differ = False
        """What `verify` compares tables with was spoilt."""
        folder.mkdir(parents=True)
        (folder / "lake").mkdir()
        self.mounted = own_disk and mounts_permitted() and _mount(folder / "lake")
        options: Mapping[str, str] = {}
        address = str(folder / "lake")
        files = None
        if shape.on_store:
            options, files = servers.store.options, servers.store.files
            address = f"s3://changes/faults-{seed}-{os.getpid()}-{time.time_ns()}"
        # a twin is only a place to take things from: its registry is a folder
        served = own_disk and shape.registry == "http"
        self._registry = serve_registry(folder / "schemas") if served else None
        url = self._registry.url if self._registry else ""
        column = "c" if own_disk else "d"
        self.site = Site(folder, address, options, servers.kafka, url, column)
        self.book = Book(layers=shape.layers)
        self.lake = Lake(address, options, files, None if files is None else self.site.progress)
        self.feed: Feed = feed_for(shape, self.site, self.book, seed=seed, dice=self.dice)
        write_file(shape, self.site, self.feed)

    # what a fault does

    def choose(self, *variants: str, weights: Sequence[int] | None = None) -> str:
        """One variant of a fault: the one that was asked for, else by chance; it is reported."""
        # thrown in any case, so that what comes after is the same
        (thrown,) = self.dice.choices(variants, weights)
        variant = next((v for v in variants if v in self.wanted), thrown)
        self._vary(variant)
        return variant

    def _vary(self, variant: str) -> None:
        """Report a variant as it can be asked for: `flip:ledger:commit/settled`."""
        first = self.report.faults[-1] == self.fault
        self.report.faults[-1] += f"{':' if first else '/'}{variant}"

    def note(self, text: str) -> None:
        """Note what was done, for the report of a round that failed."""
        self.report.notes.append(f"{self._logs:03d} {text}")

    def copies(self, name: str) -> Path:
        """Return a new folder for a copy."""
        self._copies += 1
        folder = self.folder / "copies" / f"{self._copies:02d}-{name}"
        folder.mkdir(parents=True)
        return folder

    def twin(self) -> Round:
        """Return another lake with a pipeline of the same name, and records of its own."""
        if self._twin is None:
            twin = Round(
                self.shape,
                self.seed + _TWIN,
                folder=self.folder / "twin",
                servers=self._servers,
                own_disk=False,
            )
            twin.report.faults.append("twin")
            twin.send()
            twin.tried_run()
            self._twin = twin
        return self._twin

    def tried_run(self, kill: str = "settled") -> None:
        """Run once, maybe to be killed at a moment; how it ends is looked at later."""
        files = self.files()
        outcome = self.done(
            self.command(
                ["run", str(files[0]), "--available-now", "--log-format", "json"], {KILL: kill}
            )
        )
        self.note(f"run {kill}: {outcome.code or outcome.exit}")

    def spoilt(self, way: str, names: set[str]) -> None:
        """Note that these things are no longer what they were."""
        self._settled.clear()
        self.book.garbled |= way in ("flip", "empty") and "source" in names
        if "source" in names:
            self.source_changed()
        self.book.misread |= "registry" in names

    def source_changed(self) -> None:
        """Compare the book with the source: what it no longer has and no table has is not due."""
        self.book.source_holds(self.feed.held(), there=self.lake.ids())

    def send(self, records: int | None = None, *, fresh_type: bool = False) -> None:
        """A portion more at the source, unless the source is too damaged to be written."""
        before = self.feed.made
        try:
            self.feed.send(records or self.dice.randint(40, 120), fresh_type=fresh_type)
        except DeltaError as error:
            self.note(f"the source cannot be written: {error}"[:200])
            unsent = {make_id(self.seed, n) for n in range(before + 1, self.feed.made + 1)}
            self.book.due -= unsent

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
        # a supervisor starts processes of its own: it is one, too
        forks = None if arguments[0] in ("up", "install") else self._servers.forks
        driver = Driver(
            [*arguments, "--json"], log=log, variables=variables, prefix=prefix, server=forks
        )
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

    def broken(self, what: str) -> None:
        self._found(Finding(Kind.BROKEN, self.report.faults[-1], 1, what))

    # what comes after a fault

    def settle(self) -> bool:
        """Run to the end; a refusal is answered as its message advises. True if it got there."""
        heedless = self.dice.random() < 0.5
        if self.wanted & {"heedless", "heeding"}:
            heedless = "heedless" in self.wanted
        for _ in range(_TRIES):
            outcome = self.run()
            if outcome.exit == 0:
                return True
            code = outcome.code or ("PARKED" if outcome.exit == 1 else f"EXIT_{outcome.exit}")
            self.report.refusals[code] += 1
            if code in _DEFECTS:
                return False
            if heedless:
                # whoever starts it again, a person or a scheduler, has not read the message
                heedless = False
                self._vary("heedless")
                continue
            self.note(f"run: {code}: {outcome.said[:600]}")
            if not self._advised(outcome, code):
                self.broken(f"no way is known out of {code}: {outcome.said[:300]}")
                return False
        self.broken(f"still refused after {_TRIES} runs: {code}: {outcome.said[:300]}")
        return False

    def check(self) -> bool:
        """Ask the oracle; True if nothing is wrong."""
        self.report.records = self.feed.made
        self.watch_settled()
        findings = judge(self.book, self.lake)
        if not findings and len(self.report.faults) == 1:
            # nothing has happened yet
            return True
        verified = self.verify()
        if self.unread_by_runs and verified.exit:
            self.note(f"verify: {verified.code} {verified.said[:300]}")
            self.unread_by_runs = False
            # if the first advice does not help, a person takes the second: a file that a damaged
            # log names wrongly is in no copy
            for _ in range(2):
                # differences without an error name no way: the file is put back
                if verified.code and self._advised(verified, verified.code):
                    self.settle()
                else:
                    self._mend()
                verified = self.verify()
                if not verified.code:
                    break
            findings = judge(self.book, self.lake)
        if findings and not verified.exit:
            self.broken("`verify --all --deep` agrees with tables that are wrong")
        may_differ = self.verify_may_differ or self.book.excused
        if verified.exit and not findings and not may_differ:
            self.broken(f"`verify --all --deep` differs, the oracle does not: {verified.log.name}")
        for finding in findings:
            self._found(finding)
        self.fixes.clear()
        return not self.report.findings

    def verify(self) -> Outcome:
        """Ask the product what it thinks of its tables."""
        arguments = ["verify", "--all", "--deep", "--lake", self.site.address]
        if self.shape.on_store:
            arguments += ["--file", str(self.site.file)]
        return self.done(self.command(arguments))

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
        if self._registry is not None:
            self._registry.close()
        if "disk" in self.fixes:
            self.fixes.pop("disk")()
        self.book.save(self.folder / "book.json")
        if self.report.findings:
            kept = keep / f"{self.shape.name}-{self.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            self.report.kept = str(kept)
            (kept / "notes.txt").write_text("\n".join(self.report.notes) + "\n")
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.site.lake)], check=True)
        shutil.rmtree(self.folder)

    def _advised(self, outcome: Outcome, code: str) -> bool:
        """Do what a message says; False if it names nothing that could be done."""
        step = outcome.next_step
        commands = _COMMAND.findall(step)
        may_copy = code == "PARKED" or _COPY.search(step) is not None
        if self.fixes and may_copy and (not commands or self.dice.random() < 0.6):
            self._mend()
            return self._resume() if code == "PARKED" else True
        if code == "PARKED":
            return self._resume()
        if commands:
            return self._command(*commands[0])
        return code in _AGAIN or outcome.exit == _LATER

    def _mend(self) -> None:
        """Put the newest copies back, free the disk: everything that a person can put right."""
        for name in list(self.fixes):
            self.fixes.pop(name)()
            self.note(f"mended {name}")
            if name == "source":
                self.source_changed()
        self._settled.clear()
        self.unread_by_runs = False

    def _command(self, verb: str, options: str) -> bool:
        """Give the command that a message names."""
        self.note(f"{verb}{options}")
        words = options.split()
        if verb == "recover":
            return self._recover()
        if verb == "resume":
            return self._resume()
        if "--table" in words:
            table = words[words.index("--table") + 1].strip(".,;")
            forgive_missing(self.book, self.lake, table)
            arguments = ["reset", str(self.site.file), "--table", table, "--yes"]
            return self._given(arguments)
        if verb == "rebuild":
            return self._given(["rebuild", *words, "--lake", self.site.address])
        return self.reset()

    def _given(self, arguments: Sequence[str]) -> bool:
        outcome = self.done(self.command(arguments))
        if outcome.exit:
            self.report.refusals[f"{arguments[0]}: {outcome.code}"] += 1
        return outcome.exit == 0

    def _resume(self) -> bool:
        """Give parked tables their batches; tables without any are left alone."""
        names = {entry.parent.parent.name for entry in self.lake.entries()}
        for table in sorted(names):
            options = ["--lake", self.site.address, "--file", str(self.site.file)]
            self._given(["resume", table, *options])
        return True

    def _recover(self) -> bool:
        """Take the position up from the lake, or do what `recover` says instead."""
        for file in self.files():
            outcome = self.done(self.command(["recover", str(file)]))
            # of jobs that share a stream, some may have theirs
            if outcome.exit and outcome.code != "NOT_FOUND":
                self.report.refusals[f"recover: {outcome.code}"] += 1
                commands = [c for c in _COMMAND.findall(outcome.next_step) if c[0] != "recover"]
                return bool(commands) and self._command(*commands[0])
        self.book.read_again()
        return True

    def reset(self) -> bool:
        """Start over: the tables then hold what the source has now, and nothing else."""
        # a log of change data drops the events that it has: its tables may stay
        keeps = self.shape.is_change_data
        if not keeps:
            self.book.source_holds(self.feed.held(), there=frozenset())
            self.book.removed.clear()
        more = [] if keeps else ["--with-tables"]
        return all(self._given(["reset", str(f), "--yes", *more]) for f in self.files())

    def _found(self, finding: Finding) -> None:
        text = str(finding)
        if text not in self.report.findings:
            self.report.findings.append(text)


@dataclass(frozen=True, slots=True)
class Order:
    """A fault that is to be done."""

    name: str
    act: Callable[[Round], None]
    variants: frozenset[str] = frozenset()
    """Those that were asked for."""


def play(
    shape: str,
    seed: int,
    *,
    folder: Path,
    keep: Path,
    servers: Servers,
    faults: Sequence[Order],
) -> Report:
    """Play one round: feed, and for each fault the fault, a run to the end, and the oracle."""
    began = time.monotonic()
    one = Round(SHAPES[shape], seed, folder=folder / f"{shape}-{seed}", servers=servers)
    try:
        one.send()
        one.report.faults.append("start")
        if one.settle() and one.check():
            for order in faults:
                one.wanted = order.variants
                one.fault = order.name
                one.report.faults.append(order.name)
                order.act(one)
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


def mounts_permitted() -> bool:
    """Whether this process has a name space of mounts to itself."""
    return os.environ.get("FAULTS_MOUNTS") == "private"


def _mount(folder: Path) -> bool:
    """A small disk for the lake: one that can be filled, and made read-only."""
    options = f"size={_LAKE_SIZE},nr_inodes={_LAKE_FILES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "faults", str(folder)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
