"""Who has which table name: written down in the lake, so that two types never share a table.

The first type to take a name has it, by the exclusive creation of an entry under that name. Entries
are in lower case, for whoever ignores case.

A table that the ledger knows and that has no entry, from before there were any, is the table of its
type. An entry becomes durable with the files of its batch, before the manifest that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from distributary.delta.log import commit_path, parse_commit
from distributary.model import layout
from distributary.model.names import Proposal
from distributary.store.base import at, is_remote, reaching

_READERS = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a table is to be called, and for whom."""

    type: str
    """As the ledger has it."""
    owner: Mapping[str, str]
    """What the name stands for: the fields of the template, exactly as they came."""
    proposals: tuple[Proposal, ...]
    """Where there are several, a later one tells more."""
    endings: tuple[str, ...] = ("",)
    """Of the tables that come with the name."""

    def entry(self, name: str) -> Entry:
        """What is written down when the name is taken."""
        return Entry(dict(self.owner), tuple(name + ending for ending in self.endings))


@dataclass(frozen=True, slots=True)
class Entry:
    """Who has a name, and the tables that come with it."""

    owner: Mapping[str, str]
    tables: tuple[str, ...]

    def to_json(self) -> str:
        """The entry's text."""
        return json.dumps({"owner": dict(self.owner), "tables": self.tables}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """The inverse; what cannot be read is nobody's, and stays taken."""
        try:
            data = json.loads(text)
            return cls(data["owner"], tuple(data["tables"]))
        except (ValueError, KeyError, TypeError):
            return cls({}, ())


class Entries:
    """The entries of a lake, and those that a trial run would make."""

    def __init__(self, lake: str, *, trial: bool = False) -> None:
        self._store = at(layout.names(lake))
        self._trial = trial
        self._known = self._read_all()

    def owner(self, name: str) -> Mapping[str, str] | None:
        """Who has a name, as far as it was seen."""
        entry = self._known.get(name.lower())
        return None if entry is None else entry.owner

    def stop_taking(self) -> None:
        """From now on entries are only thought of."""
        self._trial = True

    def look(self, name: str) -> None:
        """See who has a name now."""
        if self.owner(name) is None:
            with reaching(self._store.address):
                found = self._read(_file(name))
            if found is not None:
                self._known[name.lower()] = found

    def take(self, name: str, entry: Entry) -> bool:
        """Make an entry, unless another has the name."""
        if self.owner(name) is None:
            if self._trial or self._create(_file(name), entry.to_json()):
                self._known[name.lower()] = entry
            else:
                self.look(name)
        return self.owner(name) == entry.owner

    def forget(self, tables: Collection[str]) -> None:
        """Remove the entries of these tables."""
        with reaching(self._store.address):
            for name in [n for n, entry in self._known.items() if set(entry.tables) & set(tables)]:
                self._store.remove(_file(name))
                # of the version before, in a bucket
                if is_remote(self._store.address):
                    self._store.remove_folder(name)
                del self._known[name]

    def _create(self, file: str, text: str) -> bool:
        with reaching(self._store.address):
            return self._store.create(file, text.encode(), durable=False) is not None

    def _read_all(self) -> dict[str, Entry]:
        with reaching(self._store.address):
            files = [file.name for file in self._store.files()]
            names = {f: f.removesuffix(".json") for f in files if _file(f[:-5]) == f}
            if is_remote(self._store.address):
                names |= {commit_path(n, 0): n for n in self._store.folders() if n not in names}
            with ThreadPoolExecutor(_READERS) as pool:
                found = pool.map(self._read, names)
            return {n: entry for n, entry in zip(names.values(), found, strict=True) if entry}

    def _read(self, file: str) -> Entry | None:
        try:
            text = self._store.read(file)
        except FileNotFoundError:
            return None
        if "/" not in file:
            return Entry.from_json(text)
        # the version before made an entry in a bucket by the first commit of a table without rows
        return Entry.from_json((parse_commit(text).metadata or {}).get("description", ""))


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

    def held(self, wanted: Wanted) -> str | None:
        """The name that a type has already."""
        names = [name for p in wanted.proposals for name in (*self._seen(p), p.plain) if name]
        mine = (name for name in names if self._owner(name) == wanted.owner)
        if "topic" in wanted.owner:
            # the ledger does not tell topics apart: only what was named after this one alone
            names = [proposal.alone for proposal in wanted.proposals]
        older = (name for name in names if self._is_older(name, wanted))
        return next(chain(mine, older), None)

    def likely(self, wanted: Wanted) -> str:
        """The name that a type has, or would be given."""
        return self.held(wanted) or next(self._free(wanted))

    def take(self, wanted: Wanted) -> str:
        """The name of a type's table; nobody else gets it from now on."""
        name = self.held(wanted)
        if name is None and self._entries is not None:
            # another process may have taken a less wanted one meanwhile
            first, *others = wanted.proposals
            self._entries.look(next(first.marked()))
            for name in (name for p in others for name in (next(p.marked()), p.plain) if name):
                self._entries.look(name)
            name = self.held(wanted)
        choices = chain(() if name is None else (name,), self._free(wanted))
        return next(name for name in choices if self._take(name, wanted))

    def _free(self, wanted: Wanted) -> Iterator[str]:
        """Names that nobody has, as far as it is known, the best first."""
        if self._entries is None:
            choices = [proposal.alone for proposal in wanted.proposals]
        else:
            choices = [proposal.plain for proposal in wanted.proposals if proposal.plain]
        for name in chain(choices, wanted.proposals[-1].marked()):
            tables = {(name + ending).lower() for ending in wanted.endings}
            if self._owner(name) in (None, wanted.owner) and not self._ledger.keys() & tables:
                yield name

    def _seen(self, proposal: Proposal) -> Iterator[str]:
        """Names with digits, up to the first that nobody has."""
        for name in proposal.marked():
            yield name
            if self._owner(name) is None:
                return

    def _is_older(self, name: str, wanted: Wanted) -> bool:
        """Whether a table without an entry is the table of the type."""
        if self._owner(name) is not None:
            return False
        types = [self._ledger.get((name + ending).lower()) for ending in wanted.endings]
        # a topic's table has records of many types
        return any(types) if set(wanted.owner) == {"topic"} else wanted.type in types

    def _owner(self, name: str) -> Mapping[str, str] | None:
        if self._entries is None:
            return self._alone.get(name.lower())
        return self._entries.owner(name)

    def _take(self, name: str, wanted: Wanted) -> bool:
        if self._entries is None:
            return self._alone.setdefault(name.lower(), wanted.owner) == wanted.owner
        return self._entries.take(name, wanted.entry(name))


def forget_names(lake: str, tables: Collection[str]) -> None:
    """Give back the names of tables that are gone."""
    Entries(lake).forget(tables)
