"""The stream as files: what a folder gets round by round, with everything that goes wrong there."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from distributary.errors import ConfigError
from distributary.lab.simulate.cdc.database import Change, LiveTable, Op, Unit
from distributary.lab.simulate.cdc.datastream import TIME_STYLES, Event, FileEncoder, change_type
from distributary.lab.simulate.cdc.script import ChangeModel, ModelRound
from distributary.lab.simulate.cdc.shapes import (
    CdcPlan,
    Claim,
    Dice,
    Feature,
    Row,
    Shape,
    canonical,
)
from distributary.lab.simulate.dice import seed_for
from distributary.store import disk

_MINUTE = 60_000
_READ_AFTER = 5_000
_FIRST_NUMBER = 100_000
"""Names sort as numbers do as long as these have the same number of digits."""
_AGAIN, _MIXED, _LATE, _BARE, _NOISE = 0.06, 0.12, 0.1, 0.25, 0.03
_REMEMBERED = 8

EventUnit = tuple[Event, ...]
"""Events that no file separates."""


@dataclass(slots=True)
class Draft:
    """A file before it is written."""

    folder: str
    name: str
    shape: Shape
    method: str
    units: list[EventUnit]
    round: int
    """The round to which it belongs."""
    late: bool = False
    """Whether it must come after all others of its round."""
    waits: int = 0
    """How many rounds it is held back."""


# What was sent, so that a test can compare it with what arrived.


@dataclass(frozen=True, slots=True)
class CdcSent:
    """Counted while it was sent; tables are called by their names as JSON, `["shop","","users"]`.

    `events` is `distinct + duplicates`, and `distinct` is `changes + backfilled`.
    """

    events: int = 0
    """Everything that was sent, whatever was sent twice."""
    distinct: int = 0
    """What must be in the logs in the end."""
    duplicates: int = 0
    """What came again, byte by byte."""
    changes: int = 0
    backfilled: int = 0
    reused_uuids: int = 0
    """Distinct events with the id of another one."""
    tombstones: int = 0
    """Debezium: messages without a value, in addition to the events."""
    files: int = 0
    """Files with events in them."""
    late_files: int = 0
    """Those among them that appeared after their time."""
    noise_files: int = 0
    """Files without any event."""
    by_change_type: dict[str, int] = field(default_factory=dict)
    """Distinct events as their `change_type` calls them; what was read counts as `read`."""
    per_table: dict[str, int] = field(default_factory=dict)
    """Distinct events by table: the rows of its log."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows that are left in the end, by table; tables without a key are not there."""
    keyless: tuple[str, ...] = ()
    new_tables: dict[str, int] = field(default_factory=dict)
    """The round in which a table appeared that was not there in the beginning."""
    new_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    happened: dict[str, int] = field(default_factory=dict)
    """How often what happened: bursts, key_changes, backfills, late_updates, rollovers."""
    first_time: int | None = None
    """The earliest time of a change, in milliseconds since 1970."""
    last_time: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        plain = asdict(self)
        plain["keyless"] = list(self.keyless)
        for name in ("new_columns", "dropped_columns"):
            plain[name] = {table: list(columns) for table, columns in plain[name].items()}
        return plain


class CdcTally:
    """Counts what has been sent so far."""

    def __init__(self, model: ChangeModel) -> None:
        self._model = model
        self._seen: set[int] = set()
        self._types: Counter[str] = Counter()
        self._tables: Counter[Claim] = Counter()
        self._times: tuple[int, int] | None = None
        self._duplicates = 0
        self.counts: Counter[str] = Counter()
        """Of everything that is not an event, by the names that `CdcSent` has for it."""

    def add(self, number: int, change: Change) -> None:
        """Count an event by its number, which a duplicate shares."""
        if number in self._seen:
            self._duplicates += 1
            return
        self._seen.add(number)
        self._types[Op.READ if change.op is Op.READ else change_type(change)] += 1
        self._tables[change.shape.claim] += 1
        first, last = self._times or (change.ts, change.ts)
        self._times = min(first, change.ts), max(last, change.ts)

    def sent(self) -> CdcSent:
        """All of it as facts."""
        model, distinct = self._model, len(self._seen)
        told = {table.shape.claim.text: table for table in model.told}
        times = self._times or (None, None)
        return CdcSent(
            events=distinct + self._duplicates,
            distinct=distinct,
            duplicates=self._duplicates,
            changes=distinct - self._types[Op.READ],
            backfilled=self._types[Op.READ],
            by_change_type={str(name): n for name, n in sorted(self._types.items())},
            per_table={claim.text: n for claim, n in sorted(self._tables.items())},
            rows={claim.text: len(rows) for claim, rows in model.truth().items()},
            keyless=tuple(name for name, table in told.items() if not table.shape.key),
            new_tables={name: table.born for name, table in told.items() if table.born},
            new_columns={name: tuple(t.added) for name, t in told.items() if t.added},
            dropped_columns={name: tuple(t.dropped) for name, t in told.items() if t.dropped},
            happened=dict(sorted(model.happened.items())),
            first_time=times[0],
            last_time=times[1],
            **self.counts,
        )


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file, to be written whole or not at all."""

    path: str
    """Under the stream's folder."""
    data: bytes
    events: tuple[Event, ...]
    """None in files that are there to be skipped."""
    late: bool = False
    """Whether its time was over before it appeared."""


@dataclass(frozen=True, slots=True)
class FileRound:
    """The files of one round, in the order in which they appear."""

    number: int
    files: tuple[ChangeFile, ...]


class FileStream:
    """Datastream's files for a plan. `rounds` can be read once."""

    def __init__(self, plan: CdcPlan) -> None:
        if plan.is_debezium:
            raise ConfigError(
                "Debezium writes messages, not files",
                where="format",
                evidence=plan.format,
                next_step="use avro, json or json-array",
            )
        self.plan = plan
        self.model = ChangeModel(plan)
        self._encoder = FileEncoder(plan)
        self._dice = Dice(plan.seed, "files")
        self._tally = CdcTally(self.model)
        self._events = 0
        self._files = 0
        self._held: list[tuple[int, Draft]] = []
        self._past: dict[tuple[int, str], deque[EventUnit]] = {}
        self._quiet: set[str] = set()

    def rounds(self) -> Iterator[FileRound]:
        """Round by round, made when it is asked for."""
        for round in self.model.rounds():
            drafts = self._drafts(round)
            if round.number:
                self._reuse_uuids(drafts)
            drafts += self._repeat(drafts)
            turn = round.number
            files = [self._file(draft, turn) for draft in self._in_turn(drafts, turn)]
            if self.plan.has(Feature.NOISE):
                files += self._noise(drafts)
            yield FileRound(round.number, tuple(files))

    def sent(self) -> CdcSent:
        """What was sent by now."""
        return self._tally.sent()

    def _drafts(self, round: ModelRound) -> list[Draft]:
        """All files of a round, in the order in which they are listed.

        Events share one that are of one table, one schema, one way of reading and one minute.
        """
        groups: dict[tuple[int, str, int, bool], list[Unit]] = {}
        for unit in (*round.reads, *round.changes):
            first = unit[0]
            method = self._encoder.read_method(first)
            at = (id(first.shape), method, first.filed // _MINUTE, first.late)
            groups.setdefault(at, []).append(unit)
        drafts: list[Draft] = []
        for group in groups.values():
            chunks = list(self._chunks(group))
            if self.plan.has(Feature.OUT_OF_ORDER):
                chunks.reverse()
            drafts += [self._draft(chunk, round) for chunk in chunks]
        return drafts

    def _chunks(self, units: list[Unit]) -> Iterator[list[Unit]]:
        most = self.plan.file_events
        if self.plan.has(Feature.OUT_OF_ORDER):
            # two files at least, so that there is an order to get wrong
            most = min(most, max(1, len(units) // 2))
        chunk: list[Unit] = []
        held = 0
        for unit in units:
            if chunk and held + len(unit) > most:
                yield chunk
                chunk, held = [], 0
            chunk.append(unit)
            held += len(unit)
        yield chunk

    def _draft(self, units: list[Unit], round: ModelRound) -> Draft:
        first = units[0][0]
        minute = datetime.fromtimestamp(first.filed // _MINUTE * 60, UTC)
        folder = f"{first.shape.object}/{minute:%Y/%m/%d/%H/%M}"
        varied = self.plan.has(Feature.TIME_STYLES)
        style = self._dice.below(TIME_STYLES) if varied else 0
        bits = f"{self._dice.bits():016x}{self._dice.bits():016x}"
        prefix = f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-8{bits[17:20]}-{bits[20:24]}"
        numbers, read_ts = count(), round.end + _READ_AFTER
        told: list[EventUnit] = []
        for unit in units:
            events = []
            for change in unit:
                self._events += 1
                uuid = f"{prefix}{next(numbers):08x}"
                events.append(Event(self._events, change, uuid, read_ts, style))
            told.append(tuple(events))
        method = self._encoder.read_method(first)
        name = self._new_name(first.shape, method)
        return Draft(folder, name, first.shape, method, told, round.number, late=first.late)

    def _new_name(self, shape: Shape, method: str) -> str:
        """A name that no other file has."""
        self._files += 1
        place = seed_for(self.plan.seed, shape.object) % (1 << 32) - (1 << 31)
        schema_key = self._encoder.schema(shape).key
        return f"{schema_key}_{method}_{place}_0_{_FIRST_NUMBER + self._files}"

    def _noise(self, drafts: Sequence[Draft]) -> list[ChangeFile]:
        """Files without events, as they are in real buckets: no bytes, a schema, a leftover."""
        made: dict[str, bytes] = {}
        encoder = self._encoder
        for draft in self._dice.some(drafts, _NOISE):
            schema = encoder.schema(draft.shape)
            nothing = self._new_name(draft.shape, draft.method)
            without = self._new_name(draft.shape, draft.method)
            empty = encoder.file((), draft.shape, name=without)
            made |= {
                f"{draft.folder}/{nothing}{encoder.suffix}": b"",
                f"{draft.folder}/{without}{encoder.suffix}": empty,
                f"{draft.folder}/{schema.key}.avsc": schema.text.encode(),
                f"{draft.folder}_$folder$": b"",
                # what a writer leaves behind that was killed
                f"{draft.folder}/.{without}{encoder.suffix}.tmp": empty[: len(empty) // 2],
            }
        new = {path: data for path, data in made.items() if path not in self._quiet}
        self._quiet |= set(new)
        self._tally.counts["noise_files"] += len(new)
        return [ChangeFile(path, data, ()) for path, data in new.items()]

    def _repeat(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Events that come again: some in files of their own, some in files with new ones."""
        if not self.plan.has(Feature.DUPLICATES):
            return []
        again = []
        for draft in self._dice.some(drafts, _AGAIN):
            share = self._dice.pick((1.0, 0.5))
            units = sorted(self._dice.some(draft.units, share), key=lambda unit: unit[0].number)
            name = self._new_name(draft.shape, draft.method)
            again.append(replace(draft, name=name, units=units, late=False))
            again[-1].waits = self._dice.below(2)
        known = [draft for draft in drafts if self._remembered(draft)]
        for draft in self._dice.some(known, _MIXED):
            draft.units.append(self._dice.pick(self._remembered(draft)))
        # only now: what was in this round's files does not come again in the same ones
        for draft in drafts:
            self._remembered(draft).extend(draft.units[:_REMEMBERED])
        return again

    def _remembered(self, draft: Draft) -> deque[EventUnit]:
        """Events of earlier rounds that fit into this file."""
        at = (id(draft.shape), draft.method)
        return self._past.setdefault(at, deque(maxlen=_REMEMBERED))

    def _reuse_uuids(self, drafts: Sequence[Draft]) -> None:
        """In one table, another file has another event with the same id."""
        if not self.plan.has(Feature.REUSED_UUIDS):
            return
        for taker in self._dice.shuffled(drafts):
            givers = [d for d in drafts if d.shape.claim == taker.shape.claim and d is not taker]
            if givers:
                uuid = self._dice.pick(givers).units[0][0].uuid
                first, *rest = taker.units[0]
                taker.units[0] = (replace(first, uuid=uuid), *rest)
                self._tally.counts["reused_uuids"] += 1
                return

    def _in_turn(self, drafts: list[Draft], number: int) -> list[Draft]:
        """The files that appear now: late ones at last, and what waits much later."""
        last = number == self.plan.rounds - 1
        if self.plan.has(Feature.LATE_FILES) and not last:
            for draft in self._dice.some(drafts, _LATE):
                draft.waits = 1 + self._dice.below(2)
        for draft in drafts:
            draft.waits = max(draft.waits, int(draft.late))
            if not last and draft.waits:
                self._held.append((number + draft.waits, draft))
        now = [draft for draft in drafts if last or not draft.waits]
        due = [draft for turn, draft in self._held if last or turn <= number]
        self._held = [] if last else [each for each in self._held if each[0] > number]
        if self.plan.has(Feature.OUT_OF_ORDER):
            now = self._dice.shuffled(now)
        # an older change of a deleted row comes after the delete, even in the last round
        now.sort(key=lambda draft: draft.late)
        return now + due

    def _file(self, draft: Draft, turn: int) -> ChangeFile:
        events = tuple(chain.from_iterable(draft.units))
        for event in events:
            self._tally.add(event.number, event.change)
        late = draft.late or draft.round < turn
        self._tally.counts["files"] += 1
        self._tally.counts["late_files"] += late
        bare = self.plan.has(Feature.NO_SUFFIX) and self._dice.chance(_BARE)
        path = f"{draft.folder}/{draft.name}{'' if bare else self._encoder.suffix}"
        data = self._encoder.file(events, draft.shape, name=draft.name)
        return ChangeFile(path, data, events, late)


# Files into a folder: each appears whole, under a name that nobody has seen before.

# a path has lost one of its slashes
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}:/")


def write_files(
    stream: FileStream,
    root: Path,
    *,
    interval: float = 0.0,
    on_round: Callable[[FileRound], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Write all rounds, with so many seconds between two, and say what was sent."""
    address = _ADDRESS.match(str(root))
    if address or interval < 0:
        raise ConfigError(
            "simulated files need a local folder, and no time below 0 between two rounds",
            where="path, interval",
            # an address may hold a password: only its scheme is shown
            evidence=f"{address[0] if address else 'a folder'}, {interval}",
            next_step="give the path of a folder on this machine",
        )
    for round in stream.rounds():
        if round.number and interval:
            sleep(interval)
        write_round(round, root)
        if on_round is not None:
            on_round(round)
    return stream.sent()


def write_round(round: FileRound, root: Path) -> None:
    """Write the files of one round."""
    for file in round.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, file.data, durable=False)


# The truth about a simulated database as JSON: what its merged tables must hold.

TRUTH_VERSION = 1


def truth_document(model: ChangeModel) -> dict[str, Any]:
    """Every table of which anything was told, with its key, columns and rows in canonical JSON.

    Rows are sorted by their key; of a table without a key, all rows that are left are there.
    """
    rows = model.truth(keyless=True)
    return {
        "version": TRUTH_VERSION,
        "source_type": str(model.plan.source_type),
        "seed": model.plan.seed,
        "tables": [_table(table, rows[table.shape.claim]) for table in model.told],
    }


def _table(table: LiveTable, rows: list[Row]) -> dict[str, Any]:
    claim, key = table.shape.claim, table.shape.key
    plain = [{name: canonical(value) for name, value in row.items()} for row in rows]
    plain.sort(key=lambda row: json.dumps([row[name] for name in key or row], ensure_ascii=False))
    return {
        "database": claim.database,
        "schema": claim.schema,
        "table": claim.table,
        "key": list(key),
        "columns": {name: str(column.carried) for name, column in table.columns.items()},
        "dropped": list(table.dropped),
        "rows": plain,
    }
