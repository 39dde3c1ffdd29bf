"""The owners of table names, stored in the lake: two types never share a table.

The first type to take a name owns it, by exclusive creation of an entry under that name. Entries
are in lower case, for readers that ignore case. A type takes a less preferred name only after it
has seen entries of other types under all better names: so two processes that name the same type at
the same time choose the same name. A table in the ledger without an entry, from an earlier version,
belongs to its type. An entry becomes durable with the files of its batch, before the manifest that
needs it. A batch may bring a thousand new types, and in a bucket each entry is a request. So names
are first chosen one after the other (`think`), and then written in parallel. If another process
takes a name meanwhile, the type gets another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from distributary.delta.log_reading import commit_name, parse_commit
from distributary.errors import LakeUnavailableError
from distributary.model import layout
from distributary.model.names import Proposal, is_marked
from distributary.store.base import Store, at, is_remote, reaching, stay_inside

_THREADS = 32
"""The number of threads: waiting for a bucket needs no processor."""
_A = TypeVar("_A")
_B = TypeVar("_B")


@dataclass(frozen=True, slots=True)
class WantedName:
    """A request for a table's name, with its type."""

    type: str
    """The type as in the ledger."""
    owner: Mapping[str, str]
    """The owner of the name: the exact values of the template's fields."""
    proposals: tuple[Proposal, ...]
    """Possible names; later ones contain more of the owner."""
    endings: tuple[str, ...] = ("",)
    """The suffixes of the tables that come with the name."""

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
    """The plain name, if another type owns it."""

    def to_json(self) -> str:
        """Return the text of the entry."""
        data = {"owner": dict(self.owner), "tables": self.tables}
        more = {"instead_of": self.instead_of} if self.instead_of else {}
        return json.dumps(data | more, sort_keys=True)

    @property
    def spoken(self) -> str:
        """Return the owner for display: `chess`, `shop.public.orders`."""
        return ".".join(str(value) for value in self.owner.values() if value)

    @classmethod
    def from_json(cls, text: str | bytes) -> NameEntry:
        """Parse an entry; a damaged entry has no owner, and its name stays taken."""
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
        """Entries that were chosen and not written yet, with the better names to check before."""
        self._known = self._read_all()

    def owner(self, name: str) -> Mapping[str, str] | None:
        """Return the known owner of a name."""
        entry = self._known.get(name.lower())
        return None if entry is None else entry.owner

    def tables(self) -> set[str]:
        """Return the tables of all known entries."""
        return {table for entry in self._known.values() for table in entry.tables}

    def stop_taking(self) -> None:
        """Only choose entries from now on, and write none."""
        self._trial = True

    def take(
        self, name: str, entry: NameEntry, *, unless: Sequence[str] = (), after: Sequence[str] = ()
    ) -> bool:
        """Create an entry, unless the name is taken, or its owner has got another name meanwhile.

        The better names before it must belong to others.
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
        """Only choose entries until `write` is called."""
        self._waiting = {}

    def write(self) -> tuple[list[NameEntry], LakeUnavailableError | None]:
        """Write the chosen entries; return those that were not written, and the error if any.

        Without an error, other processes were faster.
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

        # better names first, so that their owners are known before a less preferred name is taken
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
        """Create the file of an entry; if the name is taken, learn its owner."""
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
                # an entry of an earlier version, in a bucket
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
    # in a bucket, an earlier version stored an entry as the first commit of a table without rows
    return NameEntry.from_json((parse_commit(text).metadata or {}).get("description", ""))


def _file(name: str) -> str:
    return f"{name.lower()}.json"


class Names:
    """Gives every type a table name, which never changes."""

    def __init__(
        self, entries: Entries | None = None, *, ledger: Mapping[str, str] | None = None
    ) -> None:
        self._entries = entries
        self._ledger = {table.lower(): type_ for table, type_ in (ledger or {}).items()}
        """The types of tables from before entries existed."""
        self._alone: dict[str, Mapping[str, str]] = {}
        """The owners of names in this process, if there is no lake."""

    def stop_taking(self) -> None:
        """Only choose names from now on, and write none."""
        if self._entries is not None:
            self._entries.stop_taking()

    def held(self, wanted: WantedName) -> str | None:
        """Return the name that a type has already."""
        names = [
            name
            for each in wanted.proposals
            for name in (*self._seen(each), each.plain, each.former)
            if name
        ]
        mine = (name for name in names if self._owner(name) == wanted.owner)
        if "topic" in wanted.owner:
            # the ledger does not distinguish topics, so only names that contain the topic count
            names = [proposal.alone for proposal in wanted.proposals]
        older = (name for name in names if self._is_older(name, wanted))
        return next(chain(mine, older), None)

    def likely(self, wanted: WantedName) -> str:
        """Return the name that a type has or would get."""
        free = (name for name in self._choices(wanted) if self._is_free(name, wanted))
        return self.held(wanted) or next(free)

    def take(self, wanted: WantedName) -> str:
        """Take a name for a type's table; no other type can get it afterwards."""
        while True:
            name = self.held(wanted)
            if name is not None and self._take(name, wanted):
                return name
            better: list[str] = []
            for choice in self._choices(wanted):
                if self._is_free(choice, wanted) and self._take(choice, wanted, after=better):
                    return choice
                if self.held(wanted) is not None:
                    # another process has given the type a less preferred name meanwhile
                    break
                better.append(choice)

    def think(self) -> None:
        """Choose names without writing them until `write`, because single writes are slow."""
        if self._entries is not None:
            self._entries.think()

    def write(self) -> tuple[list[NameEntry], LakeUnavailableError | None]:
        """Write the names chosen since `think`; return the unwritten ones, and the error."""
        return ([], None) if self._entries is None else self._entries.write()

    def _is_free(self, name: str, wanted: WantedName) -> bool:
        """Return whether no other type is known to own a name."""
        return self._owner(name) in (None, wanted.owner)

    def _choices(self, wanted: WantedName) -> Iterator[str]:
        """Yield possible names of a type, the best first; no names of tables without entries."""
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
        # the table of a topic holds records of many types
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
    """A plain name that two types map to, and the table of the second."""

    name: str
    owner: str
    """The type that owns the name; empty if unknown."""
    claimed_by: str
    table: str
    """The table of the second type."""


def clashes(lake: str) -> tuple[NameClash, ...]:
    """Return the tables of a lake that did not get their plain names."""
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
