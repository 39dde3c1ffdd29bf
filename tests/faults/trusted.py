"""Everything a run trusts, and the ways in which each of it goes wrong: two tables.

`TRUSTED` says which files are each thing, `WAYS` what happens to them. An experiment is a way and
a thing: copies are taken while the pipeline runs on, the thing is spoilt, and the newest copy waits
for a message that asks for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from distributary.delta.log import load
from distributary.delta.log_checkpoint import write_checkpoint
from distributary.engine.kill_points import KillPoint
from distributary.store.base import at
from tests.faults.feeds import Shape
from tests.faults.rounds import Round

_HOME = "lake/_distributary"
_PIPELINES = f"{_HOME}/pipelines/*"
_DELTA = {"data": "**/[!.]*.parquet", "commit": "**/_delta_log/*.json"}
_MOMENTS = (KillPoint.AFTER_MANIFEST, KillPoint.AFTER_FIRST_COMMIT, KillPoint.BEFORE_SETTLE)
Fix = Callable[[], None]
_THEN = "then_"
"""Before the name of a moment: the first run after the fault is killed there."""


def _on_disk(shape: Shape) -> bool:
    return not shape.on_store


@dataclass(frozen=True, slots=True)
class Trusted:
    """Something that a run believes: files of a round, by patterns below its folder."""

    roots: Sequence[str]
    """The folders and files that are the thing as a whole."""
    parts: Mapping[str, str]
    """Kinds of its files, by patterns below its roots; a root that is a file is the part `file`."""
    fits: Callable[[Shape], bool] = _on_disk
    single: bool = False
    """Of the roots that there are, chance takes one."""
    prepare: Callable[[Round], Fix] = lambda one: _nothing
    """Makes sure that the thing is there; returns what ends that after the fault."""
    read_again: bool = True
    """A run reads all of its files; where it does not, `verify --deep` must tell what is wrong."""
    verified: bool = False
    """`verify` compares tables with it: once it is spoilt, `verify` may differ from the oracle."""


def _nothing() -> None:
    """Do nothing."""


def _block_table(one: Round) -> Fix:
    """Have batches wait for a table until the fault: the next version of its log is a folder."""
    log = one.site.lake / one.dice.choice(one.lake.tables()) / "_delta_log"
    if not log.exists():
        return _nothing
    blocked = log / f"{len(list(log.glob('*.json'))):020d}.json"
    blocked.mkdir()
    return blocked.rmdir


def _checkpoint_logs(one: Round) -> Fix:
    """Write checkpoints of the tables' logs: half of them as another engine, half as ours would."""
    for number, log in enumerate(sorted(one.site.lake.glob("[!_]*/_delta_log"))):
        snapshot = load(at(log.parent))
        if number % 2 or snapshot is None:
            DeltaTable(str(log.parent)).create_checkpoint()
        else:
            write_checkpoint(snapshot)
    return _nothing


_LOGS = {
    **_DELTA,
    "log_checkpoint": "**/_delta_log/*.checkpoint.parquet",
    "metadata": "**/metadata/*",
}

TRUSTED = {
    "lake": Trusted([_HOME, "lake/[!_]*"], _DELTA, read_again=False, verified=True),
    "tables": Trusted(["lake/[!_]*"], _LOGS, prepare=_checkpoint_logs, read_again=False),
    "table": Trusted(["lake/[!_]*"], _DELTA, single=True, read_again=False),
    # a run reads the sums of the ledger, whose cost does not grow, and not the rows behind them
    "ledger": Trusted([f"{_HOME}/ledger"], _DELTA, read_again=False, verified=True),
    "names": Trusted(
        [f"{_HOME}/names"], {"name": "*.json"}, lambda s: _on_disk(s) and not s.is_change_data
    ),
    "card": Trusted([f"{_PIPELINES}/pipeline.json"], {}),
    "decided": Trusted([f"{_PIPELINES}/decided-*.json"], {}),
    "home": Trusted([_HOME], {"file": "**/*.json"}, read_again=False, verified=True),
    "tombstones": Trusted(
        [f"{_HOME}/tombstones", f"{_HOME}/changes"], _DELTA, lambda s: s.is_change_data
    ),
    "catalog": Trusted([f"{_HOME}/iceberg.db"], {}, lambda s: "iceberg" in s.tables),
    "checkpoint": Trusted(
        ["lake/_checkpoints/*"],
        {
            "manifest": "manifests/*.json",
            "settled": "manifests/*.settled",
            "claim": "claims/*.json",
            "life": "life.json",
            "first": "first.json",
            "files": "files/**/*",
            "schemas": "*schemas/**/*",
        },
        lambda shape: True,
    ),
    "parked": Trusted(
        [f"{_PIPELINES}/parked"],
        {"entry": "**/entry.json", "data": "**/*.parquet"},
        lambda s: _on_disk(s) and s.is_delta,
        prepare=_block_table,
    ),
    # without a log no table says which events were read
    "source": Trusted(["source/*"], _DELTA, lambda s: bool(s.layers)),
    "registry": Trusted(
        ["schemas"],
        {"schema": "ids/*.json", "subject": "subjects/*/*.json"},
        lambda s: not s.is_change_data,
    ),
}


@dataclass(slots=True)
class Spoilt:
    """One thing in one round: where it is, its older copies, and the file that is chosen."""

    one: Round
    name: str
    copies: list[Fix] = field(default_factory=list)
    """By age, the oldest first: each puts the thing back as it was."""
    chosen: Path | None = None
    """Of a thing of many, the one."""

    @property
    def thing(self) -> Trusted:
        return TRUSTED[self.name]

    @property
    def is_topic(self) -> bool:
        return self.name == "source" and self.one.shape.source == "kafka"

    def roots(self, folder: Path | None = None) -> list[Path]:
        """Return the paths that are the thing now, in this round or below another folder."""
        base = folder or self.one.folder
        found = sorted({p for pattern in self.thing.roots for p in base.glob(pattern)})
        if not self.thing.single:
            return found
        self.chosen = self.chosen or self.one.dice.choice(found).relative_to(self.one.folder)
        return [p for p in found if p == base / self.chosen]

    def keep_copy(self) -> None:
        self.copies.append(self.copy())

    def copy(self) -> Fix:
        """Copy the thing; return what puts the copy in its place."""
        if self.is_topic:
            return self.one.feed.copy_topic()
        copy = self.one.copies(self.name)
        self._copy_roots(self.one.folder, copy)
        return lambda: self.put(copy)

    def put(self, copy: Path) -> None:
        """Replace the thing by what another folder holds of it."""
        self.remove()
        self._copy_roots(copy, self.one.folder)

    def remove(self) -> None:
        if self.is_topic:
            self.one.feed.replace_source()
            return
        for root in self.roots():
            shutil.rmtree(root) if root.is_dir() else root.unlink()

    def file(self) -> Path | None:
        """Choose one of its files, of the part that was asked for; None if it has none."""
        parts = {"any": "**/*", **self.thing.parts}
        found: dict[str, list[Path]] = {}
        for root in self.roots():
            for part, pattern in parts.items():
                paths = [root] if root.is_file() else root.glob(pattern)
                found.setdefault(part, []).extend(p for p in paths if p.is_file())
        filled = {part: sorted(paths) for part, paths in found.items() if paths}
        if not filled:
            return None
        part = self.one.choose(*filled)
        file = self.one.dice.choice(filled[part])
        self.one.note(str(file.relative_to(self.one.folder)))
        self.one.unread_by_runs = not self.thing.read_again
        return file

    def _copy_roots(self, source: Path, target: Path) -> None:
        for root in self.roots(source):
            place = target / root.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if root.is_dir():
                shutil.copytree(root, place, symlinks=True)
            else:
                shutil.copy2(root, place)


def _whole(act: Callable[[Spoilt], None]) -> Callable[[Spoilt], Fix]:
    """Spoil all of a thing; its newest copy is kept."""

    def spoil(spoilt: Spoilt) -> Fix:
        newest = spoilt.copy()
        act(spoilt)
        return newest

    return spoil


def _one_file(act: Callable[[Round, Path], None]) -> Callable[[Spoilt], Fix]:
    """Spoil one file of a thing; a copy of the file is kept."""

    def spoil(spoilt: Spoilt) -> Fix:
        file = spoilt.file()
        if file is None:
            return _nothing
        content = file.read_bytes()

        def put_back() -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

        act(spoilt.one, file)
        return put_back

    return spoil


def _put_older(spoilt: Spoilt) -> None:
    spoilt.one.dice.choice(spoilt.copies)()


def _put_other(spoilt: Spoilt) -> None:
    twin = spoilt.one.twin()
    if spoilt.is_topic:
        spoilt.one.feed.take_topic_of(twin.feed)
    else:
        spoilt.put(twin.folder)


def _empty(_: Round, file: Path) -> None:
    file.write_bytes(b"")


def _flip(one: Round, file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        place = one.dice.randrange(len(data))
        data[place] ^= 1 << one.dice.randrange(8)
        file.write_bytes(data)


def _has_files(name: str, shape: Shape) -> bool:
    return not (name == "source" and shape.source == "kafka")


def _has_readable_files(name: str, shape: Shape) -> bool:
    return not (name == "source" and shape.source != "delta")


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which something trusted goes wrong."""

    spoil: Callable[[Spoilt], Fix]
    """Returns what puts it right again."""
    fits: Callable[[str, Shape], bool] = lambda name, shape: True


WAYS = {
    "back": Way(_whole(_put_older)),
    # events of another source are in no book: what the tables must hold then is not known
    "other": Way(_whole(_put_other), lambda n, s: not (n == "source" and s.is_change_data)),
    "gone": Way(_whole(Spoilt.remove)),
    "empty": Way(_one_file(_empty), _has_readable_files),
    "drop": Way(_one_file(lambda _, file: file.unlink()), _has_files),
    # nor are those of a damaged file
    "flip": Way(_one_file(_flip), _has_readable_files),
    "cut": Way(
        _whole(lambda spoilt: spoilt.one.feed.cut_topic()),
        lambda n, s: n == "source" and s.source == "kafka",
    ),
}
PAIRS = (
    ("lake", "checkpoint"),
    ("lake", "source"),
    ("tables", "ledger"),
    ("ledger", "checkpoint"),
    ("home", "checkpoint"),
    ("decided", "checkpoint"),
    ("checkpoint", "source"),
    ("registry", "checkpoint"),
    ("table", "checkpoint"),
    ("catalog", "checkpoint"),
)
"""Two things that are put back, each to a copy of its own age."""


def experiments() -> dict[str, tuple[Callable[[Round], None], Callable[[Shape], bool]]]:
    """Return by name, such as `back:lake` or `back:lake+checkpoint`, what is done, and to whom."""
    named = [(way, (thing,)) for way in WAYS for thing in TRUSTED]
    named += [("back", pair) for pair in PAIRS]
    return {f"{w}:{'+'.join(t)}": (_experiment(w, t), _fits(w, t)) for w, t in named}


def _fits(way: str, names: Sequence[str]) -> Callable[[Shape], bool]:
    def fits(shape: Shape) -> bool:
        # jobs that share a stream have checkpoints that only together mean something
        one_job = shape.jobs != "shards"
        can = (TRUSTED[n].fits(shape) and WAYS[way].fits(n, shape) for n in names)
        return one_job and all(can)

    return fits


def _experiment(way: str, names: Sequence[str]) -> Callable[[Round], None]:
    def act(one: Round) -> None:
        things = [Spoilt(one, name) for name in names]
        moments = [*_MOMENTS, *([KillPoint.BEFORE_MERGE] if one.shape.is_change_data else [])]
        prepared = [each.thing.prepare(one) for each in things]
        for each in things:
            each.keep_copy()
        # less than a batch holds: with what comes later it is cut in another place
        one.send(one.dice.choice([12, 25, 80]))
        one.tried_run(kill=one.choose("settled", *moments))
        if one.dice.random() < 0.5:
            for each in things:
                each.keep_copy()
            one.send(one.dice.choice([12, 25, 80]), fresh_type=one.dice.random() < 0.3)
            one.tried_run()
        for each in things:
            one.fixes[each.name] = WAYS[way].spoil(each)
            one.verify_may_differ |= each.thing.verified
        for end in prepared:
            end()
        one.spoilt(way, {each.name for each in things})
        if one.dice.random() < 0.8:
            one.send(fresh_type=one.dice.random() < 0.3)
        then_killed = [f"{_THEN}{m}" for m in moments]
        then = one.choose("then_run", *then_killed, weights=(5, *[1] * len(then_killed)))
        if then != "then_run":
            one.tried_run(kill=then.removeprefix(_THEN))

    return act
