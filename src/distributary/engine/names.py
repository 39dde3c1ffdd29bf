"""The owners of table names, stored in the lake, so that two types never share a table.

The first type to take a name has it, by the exclusive creation of an entry under that name. Entries
are in lower case, for readers that ignore case. A type takes a less wanted name only after it has
seen the entries of others under all better ones: two processes that name the same type at the same
time get the same name.

A table that the ledger knows and that has no entry, from before there were any, is the table of its
type. An entry becomes durable with the files of its batch, before the manifest that needs it.

A batch may bring a thousand new types, and in a bucket each entry is a request. So names are first
thought of, one after the other (`think`), and then written down, all at once. If another process
takes a name meanwhile, the type gets another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from distributary.delta.log import commit_name, parse_commit
from distributary.errors import LakeUnavailableError
from distributary.model import layout
from distributary.model.names import Proposal, is_marked
from distributary.store.base import Store, at, is_remote, reaching, stay_inside

_THREADS = 32
"""What waits for a bucket needs no processor."""
_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, slots=True)
class WantedName:
    """A request for a table's name, with its type."""

    type: str
    """As the ledger has it."""
    owner: Mapping[str, str]
    """What the name stands for: the fields of the template, exactly as they came."""
    proposals: tuple[Proposal, ...]
    """Where there are several, a later one tells more."""
    endings: tuple[str, ...] = ("",)
    """Of the tables that come with the name."""

    def entry(self, name: str) -> NameEntry:
        """Return the entry to write when the name is taken."""
        tables = tuple(name + ending for ending in self.endings)
        best = self.proposals[-1].plain
        return NameEntry(dict(self.owner), tables, best if is_marked(name) else "")


@dataclass(frozen=True, slots=True)
class NameEntry:
    """The owner of a name, with the tables that belong to it."""

    owner: Mapping[str, str]
    tables: tuple[str, ...]
    instead_of: str = ""
    """The plain name, where another had it."""

    def to_json(self) -> str:
        """The entry's text."""
        data = {"owner": dict(self.owner), "tables": self.tables}
        more = {"instead_of": self.instead_of} if self.instead_of else {}
        return json.dumps(data | more, sort_keys=True)

    @property
    def spoken(self) -> str:
        """The owner as people write it: `chess`, `shop.public.orders`."""
        return ".".join(str(value) for value in self.owner.values() if value)

    @classmethod
    def from_json(cls, text: str | bytes) -> NameEntry:
        """Read an entry; one that cannot be read has no owner and stays taken."""
        try:
            data = json.loads(text)
            return cls(dict(data["owner"]), tuple(data["tables"]), str(data.get("instead_of", "")))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls({}, ())


class Entries:
    """The entries of a lake, and those that a trial run would make."""

    def __init__(self, lake: str, *, trial: bool = False) -> None:
        self._store = at(layout.names(lake))
        self._trial = trial
        self._waiting: dict[str, tuple[NameEntry, tuple[str, ...], tuple[str, ...]]] | None = None
        """Thought of and not written down yet, with the names to look at before."""
        self._known = self._read_all()

    def owner(self, name: str) -> Mapping[str, str] | None:
        """Return the owner of a name, as far as it was read."""
        entry = self._known.get(name.lower())
        return None if entry is None else entry.owner

    def tables(self) -> set[str]:
        """Return the tables of all entries that were seen."""
        return {table for entry in self._known.values() for table in entry.tables}

    def stop_taking(self) -> None:
        """From now on entries are only thought of."""
        self._trial = True

    def take(
        self, name: str, entry: NameEntry, *, unless: Sequence[str] = (), after: Sequence[str] = ()
    ) -> bool:
        """Make an entry, unless another has the name, or its owner one of some others by now.

        Others must have those that come before it.
        """
        if self.owner(name) is None:
            if self._trial:
                self._known[name.lower()] = entry
            elif self._waiting is not None:
                self._known[name.lower()] = entry
                self._waiting[name] = entry, tuple(unless), tuple(after)
            else:
                with reaching(self._store.address):
                    return self._write(name, entry, unless, after)
        return self.owner(name) == entry.owner

    def think(self) -> None:
        """From now on, until `write`, entries are thought of."""
        self._waiting = {}

    def write(self) -> tuple[list[NameEntry], LakeUnavailableError | None]:
        """Write down what was thought of; those that were not, and the error that is the reason.

        Without an error, others have been faster.
        """
        waiting, self._waiting = self._waiting or {}, None
        for name in waiting:
            del self._known[name.lower()]

        def written(name: str) -> bool | LakeUnavailableError:
            try:
                with reaching(self._store.address):
                    return self._write(name, *waiting[name])
            except LakeUnavailableError as error:
                return error

        # better names first: who has one is seen before a less wanted one is taken
        first = [name for name, (_, _, after) in waiting.items() if not after]
        then = [name for name, (_, _, after) in waiting.items() if after]
        answers = self._each(written, first) + self._each(written, then)
        done = dict(zip(first + then, answers, strict=True))
        lost = [waiting[name][0] for name, good in done.items() if good is not True]
        errors = (good for good in done.values() if isinstance(good, LakeUnavailableError))
        return lost, next(errors, None)

    def _write(
        self, name: str, entry: NameEntry, unless: Sequence[str], after: Sequence[str]
    ) -> bool:
        """Create an entry's file; what another process has done meanwhile is known after it."""
        for other in unless:
            found = self._see(other)
            if found is not None and found.owner == entry.owner:
                return False
        for better in after:
            found = self._see(better)
            if found is None or found.owner == entry.owner:
                return False
        if self._store.create(_file(name), entry.to_json().encode(), durable=False) is not None:
            self._known[name.lower()] = entry
            return True
        found = self._see(name)
        return found is not None and found.owner == entry.owner

    def _see(self, name: str) -> NameEntry | None:
        """Return the current entry of a name."""
        if name.lower() not in self._known:
            found = self._read(_file(name))
            if found is not None:
                self._known[name.lower()] = found
        return self._known.get(name.lower())

    def _each(self, do: Callable[[_A], _B], items: Iterable[_A]) -> list[_B]:
        if not is_remote(self._store.address):
            return [do(item) for item in items]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(do, items))

    def forget(self, tables: Collection[str]) -> None:
        """Remove the entries of these tables."""
        with reaching(self._store.address):
            for name in [n for n, entry in self._known.items() if set(entry.tables) & set(tables)]:
                self._store.remove(_file(name))
                # of the version before, in a bucket
                if is_remote(self._store.address):
                    self._store.remove_folder(name)
                del self._known[name]

    def _read_all(self) -> dict[str, NameEntry]:
        with reaching(self._store.address):
            files = [file.name for file in self._store.files()]
            names = {f: f.removesuffix(".json") for f in files if _file(f[:-5]) == f}
            if is_remote(self._store.address):
                old = (n for n in self._store.folders() if n not in names)
                names |= {f"{n}/{commit_name(0)}": n for n in old}
            found = self._each(self._read, names)
            return {n: entry for n, entry in zip(names.values(), found, strict=True) if entry}

    def _read(self, file: str) -> NameEntry | None:
        return _read(self._store, file)


def _read(store: Store, file: str) -> NameEntry | None:
    try:
        text = store.read(file)
    except FileNotFoundError:
        return None
    if "/" not in file:
        return NameEntry.from_json(text)
    # the version before made an entry in a bucket by the first commit of a table without rows
    return NameEntry.from_json((parse_commit(text).metadata or {}).get("description", ""))


def _file(name: str) -> str:
    return f"{name.lower()}.json"


class Names:
    """Gives every type the name of its table, the same for ever."""

    def __init__(
        self, entries: Entries | None = None, *, ledger: Mapping[str, str] | None = None
    ) -> None:
        self._entries = entries
        self._ledger = {table.lower(): type_ for table, type_ in (ledger or {}).items()}
        """The types of tables that may be older than entries."""
        self._alone: dict[str, Mapping[str, str]] = {}
        """Without a lake: who has a name in this process."""

    def stop_taking(self) -> None:
        """From now on give names and write none down."""
        if self._entries is not None:
            self._entries.stop_taking()

    def held(self, wanted: WantedName) -> str | None:
        """The name that a type has already."""
        names = [
            name
            for each in wanted.proposals
            for name in (*self._seen(each), each.plain, each.former)
            if name
        ]
        mine = (name for name in names if self._owner(name) == wanted.owner)
        if "topic" in wanted.owner:
            # the ledger does not tell topics apart: only what was named after this one alone
            names = [proposal.alone for proposal in wanted.proposals]
        older = (name for name in names if self._is_older(name, wanted))
        return next(chain(mine, older), None)

    def likely(self, wanted: WantedName) -> str:
        """The name that a type has, or would be given."""
        free = (name for name in self._choices(wanted) if self._is_free(name, wanted))
        return self.held(wanted) or next(free)

    def take(self, wanted: WantedName) -> str:
        """Take the name of a type's table; no other type can get it afterwards."""
        while True:
            name = self.held(wanted)
            if name is not None and self._take(name, wanted):
                return name
            better: list[str] = []
            for choice in self._choices(wanted):
                if self._is_free(choice, wanted) and self._take(choice, wanted, after=better):
                    return choice
                if self.held(wanted) is not None:
                    # another process has taken a less wanted one meanwhile
                    break
                better.append(choice)

    def think(self) -> None:
        """Until `write`, give names without writing them down, which is slow one by one."""
        if self._entries is not None:
            self._entries.think()

    def write(self) -> tuple[list[NameEntry], LakeUnavailableError | None]:
        """Write down the names that were given since `think`; those that were not, and why not."""
        return ([], None) if self._entries is None else self._entries.write()

    def _is_free(self, name: str, wanted: WantedName) -> bool:
        """Return whether no other type is known to have a name."""
        return self._owner(name) in (None, wanted.owner)

    def _choices(self, wanted: WantedName) -> Iterator[str]:
        """Names that a type may have, the best first; not those of tables older than entries."""
        if self._entries is None:
            choices = [proposal.alone for proposal in wanted.proposals]
        else:
            choices = [proposal.plain for proposal in wanted.proposals if proposal.plain]
        for name in chain(choices, wanted.proposals[-1].marked()):
            tables = {(name + ending).lower() for ending in wanted.endings}
            if not self._ledger.keys() & tables:
                yield name

    def _seen(self, proposal: Proposal) -> Iterator[str]:
        """Yield names with digits, up to the first free one."""
        for name in proposal.marked():
            yield name
            if self._owner(name) is None:
                return

    def _is_older(self, name: str, wanted: WantedName) -> bool:
        """Return whether a table without an entry belongs to the type."""
        if self._owner(name) is not None:
            return False
        types = [self._ledger.get((name + ending).lower()) for ending in wanted.endings]
        # a topic's table has records of many types
        return any(types) if set(wanted.owner) == {"topic"} else wanted.type in types

    def _owner(self, name: str) -> Mapping[str, str] | None:
        if self._entries is None:
            return self._alone.get(name.lower())
        return self._entries.owner(name)

    def _take(self, name: str, wanted: WantedName, after: Sequence[str] = ()) -> bool:
        if self._entries is None:
            return self._alone.setdefault(name.lower(), wanted.owner) == wanted.owner
        first, *others = wanted.proposals
        less_wanted = [next(first.marked())]
        less_wanted += [other for p in others for other in (next(p.marked()), p.plain) if other]
        unless = [other for other in less_wanted if other != name]
        return self._entries.take(name, wanted.entry(name), unless=unless, after=after)


@dataclass(frozen=True, slots=True)
class NameClash:
    """A name that two types would have, and what became of the second."""

    name: str
    owner: str
    """Who has it; empty where that is not written down."""
    claimed_by: str
    table: str
    """The table of the second."""


def clashes(lake: str) -> tuple[NameClash, ...]:
    """The tables of a lake that could not have their plain names; others are not looked at."""
    store = at(layout.names(lake))
    with reaching(store.address):
        stay_inside(lake, store.address)
        files = {file.name for file in store.files()}
        marked = sorted(name for name in files if is_marked(name.removesuffix(".json")))
        with ThreadPoolExecutor(_THREADS) as pool:
            second = [one for one in pool.map(lambda f: _read(store, f), marked) if one]
            second = [one for one in second if one.instead_of and one.tables]
            names = (one.instead_of for one in second)
            first = pool.map(lambda n: _read(store, _file(n)) if _file(n) in files else None, names)
            pairs = list(zip(second, first, strict=True))
    return tuple(
        NameClash(one.instead_of, other.spoken if other else "", one.spoken, one.tables[0])
        for one, other in pairs
    )
