"""Change events as Datastream files, with the disorder of real buckets."""

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
from distributary.store import disk
from distributary_lab.simulate.cdc.datastream import (
    TIME_STYLES,
    FileEncoder,
    NumberedEvent,
    change_type,
)
from distributary_lab.simulate.cdc.script import ChangeModel, ModelRound
from distributary_lab.simulate.cdc.shapes import (
    CdcPlan,
    Dice,
    Feature,
    Row,
    SourceShape,
    TableClaim,
    canonical,
)
from distributary_lab.simulate.cdc.simulated_database import LiveTable, Op, SourceChange, Unit
from distributary_lab.simulate.dice import seed_for

_MINUTE = 60_000
_READ_AFTER = 5_000
_FIRST_NUMBER = 100_000
"""The first number in file names: names sort like numbers while all have the same length."""
_AGAIN, _MIXED, _LATE, _BARE, _NOISE = 0.06, 0.12, 0.1, 0.25, 0.03
_REMEMBERED = 8

EventUnit = tuple[NumberedEvent, ...]
"""Events that are always in the same file."""


@dataclass(slots=True)
class FileDraft:
    """A file before it is written."""

    folder: str
    name: str
    shape: SourceShape
    method: str
    units: list[EventUnit]
    round: int
    """The round to which it belongs."""
    late: bool = False
    """Whether it must come after all others of its round."""
    waits: int = 0
    """Number of rounds by which it is delayed."""


# Counts of sent events, which tests compare with what arrived.


@dataclass(frozen=True, slots=True)
class CdcSent:
    """Counts of the events sent; tables are named by JSON such as `["shop","","users"]`.

    `events` is `distinct + duplicates`, and `distinct` is `changes + backfilled`.
    """

    events: int = 0
    """Number of all events sent, with duplicates."""
    distinct: int = 0
    """Number of events that the logs must hold in the end."""
    duplicates: int = 0
    """Number of events that were sent again, byte by byte."""
    changes: int = 0
    backfilled: int = 0
    reused_uuids: int = 0
    """Number of distinct events with the id of another one."""
    tombstones: int = 0
    """Debezium: number of messages without a value, in addition to the events."""
    files: int = 0
    """Number of files with events."""
    late_files: int = 0
    """Number of files with events that appeared after their time."""
    noise_files: int = 0
    """Number of files without events."""
    by_change_type: dict[str, int] = field(default_factory=dict)
    """Distinct events by their `change_type`; backfilled rows count as `read`."""
    per_table: dict[str, int] = field(default_factory=dict)
    """Distinct events by table, which is the number of rows in its log."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows that remain in the end, by table, without tables that have no key."""
    keyless: tuple[str, ...] = ()
    new_tables: dict[str, int] = field(default_factory=dict)
    """The round in which each later table appeared."""
    new_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    happened: dict[str, int] = field(default_factory=dict)
    """Number of bursts, key_changes, backfills, late_updates and rollovers."""
    first_time: int | None = None
    """The earliest time of a change, in milliseconds since 1970."""
    last_time: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = asdict(self)
        plain["keyless"] = list(self.keyless)
        for name in ("new_columns", "dropped_columns"):
            plain[name] = {table: list(columns) for table, columns in plain[name].items()}
        return plain


class CdcTally:
    """The counts of everything sent so far."""

    def __init__(self, model: ChangeModel) -> None:
        self._model = model
        self._seen: set[int] = set()
        self._types: Counter[str] = Counter()
        self._tables: Counter[TableClaim] = Counter()
        self._times: tuple[int, int] | None = None
        self._duplicates = 0
        self.counts: Counter[str] = Counter()
        """Counts of everything but events, by the fields of `CdcSent`."""

    def add(self, number: int, change: SourceChange) -> None:
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
        """Return the counts."""
        model, distinct = self._model, len(self._seen)
        tables = {table.shape.claim.text: table for table in model.seen}
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
            keyless=tuple(name for name, table in tables.items() if not table.shape.key),
            new_tables={name: table.born for name, table in tables.items() if table.born},
            new_columns={name: tuple(t.added) for name, t in tables.items() if t.added},
            dropped_columns={name: tuple(t.dropped) for name, t in tables.items() if t.dropped},
            happened=dict(sorted(model.happened.items())),
            first_time=times[0],
            last_time=times[1],
            **self.counts,
        )


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file, to be written whole or not at all."""

    path: str
    """Path below the stream's folder."""
    data: bytes
    events: tuple[NumberedEvent, ...]
    """The events; empty in files that readers must skip."""
    late: bool = False
    """Whether it appeared after its time."""


@dataclass(frozen=True, slots=True)
class FileRound:
    """The files of one round, in the order of their appearance."""

    number: int
    files: tuple[ChangeFile, ...]


class FileStream:
    """The Datastream files of a plan. `rounds` can be read once."""

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
        self._held: list[tuple[int, FileDraft]] = []
        self._past: dict[tuple[int, str], deque[EventUnit]] = {}
        self._quiet: set[str] = set()

    def rounds(self) -> Iterator[FileRound]:
        """Yield rounds; each is made when it is requested."""
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
        """Return the counts of everything sent so far."""
        return self._tally.sent()

    def _drafts(self, round: ModelRound) -> list[FileDraft]:
        """Return all files of a round, in the order in which they are listed.

        Events share a file if they have the same table, schema, read method and minute.
        """
        groups: dict[tuple[int, str, int, bool], list[Unit]] = {}
        for unit in (*round.reads, *round.changes):
            first = unit[0]
            method = self._encoder.read_method(first)
            at = (id(first.shape), method, first.filed // _MINUTE, first.late)
            groups.setdefault(at, []).append(unit)
        drafts: list[FileDraft] = []
        for group in groups.values():
            chunks = list(self._chunks(group))
            if self.plan.has(Feature.OUT_OF_ORDER):
                chunks.reverse()
            drafts += [self._draft(chunk, round) for chunk in chunks]
        return drafts

    def _chunks(self, units: list[Unit]) -> Iterator[list[Unit]]:
        most = self.plan.file_events
        if self.plan.has(Feature.OUT_OF_ORDER):
            # at least two files, so that they can be out of order
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

    def _draft(self, units: list[Unit], round: ModelRound) -> FileDraft:
        first = units[0][0]
        minute = datetime.fromtimestamp(first.filed // _MINUTE * 60, UTC)
        folder = f"{first.shape.object}/{minute:%Y/%m/%d/%H/%M}"
        varied = self.plan.has(Feature.TIME_STYLES)
        style = self._dice.below(TIME_STYLES) if varied else 0
        bits = f"{self._dice.bits():016x}{self._dice.bits():016x}"
        prefix = f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-8{bits[17:20]}-{bits[20:24]}"
        numbers, read_ts = count(), round.end + _READ_AFTER
        event_units: list[EventUnit] = []
        for unit in units:
            events = []
            for change in unit:
                self._events += 1
                uuid = f"{prefix}{next(numbers):08x}"
                events.append(NumberedEvent(self._events, change, uuid, read_ts, style))
            event_units.append(tuple(events))
        method = self._encoder.read_method(first)
        name = self._new_name(first.shape, method)
        return FileDraft(
            folder, name, first.shape, method, event_units, round.number, late=first.late
        )

    def _new_name(self, shape: SourceShape, method: str) -> str:
        """Return a name that no other file has."""
        self._files += 1
        place = seed_for(self.plan.seed, shape.object) % (1 << 32) - (1 << 31)
        schema_key = self._encoder.schema(shape).key
        return f"{schema_key}_{method}_{place}_0_{_FIRST_NUMBER + self._files}"

    def _noise(self, drafts: Sequence[FileDraft]) -> list[ChangeFile]:
        """Return files without events, as in real buckets: empty files, schemas, leftovers."""
        contents: dict[str, bytes] = {}
        encoder = self._encoder
        for draft in self._dice.some(drafts, _NOISE):
            schema = encoder.schema(draft.shape)
            nothing = self._new_name(draft.shape, draft.method)
            without = self._new_name(draft.shape, draft.method)
            empty = encoder.file((), draft.shape, name=without)
            contents |= {
                f"{draft.folder}/{nothing}{encoder.suffix}": b"",
                f"{draft.folder}/{without}{encoder.suffix}": empty,
                f"{draft.folder}/{schema.key}.avsc": schema.text.encode(),
                f"{draft.folder}_$folder$": b"",
                # the leftover of a killed writer
                f"{draft.folder}/.{without}{encoder.suffix}.tmp": empty[: len(empty) // 2],
            }
        new = {path: data for path, data in contents.items() if path not in self._quiet}
        self._quiet |= set(new)
        self._tally.counts["noise_files"] += len(new)
        return [ChangeFile(path, data, ()) for path, data in new.items()]

    def _repeat(self, drafts: Sequence[FileDraft]) -> list[FileDraft]:
        """Return files with repeated events, and add some repeated events to new files."""
        if not self.plan.has(Feature.DUPLICATES):
            return []
        repeated = []
        for draft in self._dice.some(drafts, _AGAIN):
            share = self._dice.pick((1.0, 0.5))
            units = sorted(self._dice.some(draft.units, share), key=lambda unit: unit[0].number)
            name = self._new_name(draft.shape, draft.method)
            repeated.append(replace(draft, name=name, units=units, late=False))
            repeated[-1].waits = self._dice.below(2)
        eligible = [draft for draft in drafts if self._remembered(draft)]
        for draft in self._dice.some(eligible, _MIXED):
            draft.units.append(self._dice.pick(self._remembered(draft)))
        # recorded last, so that events of this round are not repeated in it
        for draft in drafts:
            self._remembered(draft).extend(draft.units[:_REMEMBERED])
        return repeated

    def _remembered(self, draft: FileDraft) -> deque[EventUnit]:
        """Return events of earlier rounds that fit into this file."""
        at = (id(draft.shape), draft.method)
        return self._past.setdefault(at, deque(maxlen=_REMEMBERED))

    def _reuse_uuids(self, drafts: Sequence[FileDraft]) -> None:
        """Give an event the id of another event of its table, in another file."""
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

    def _in_turn(self, drafts: list[FileDraft], number: int) -> list[FileDraft]:
        """Return the files that appear now: late ones last, delayed ones in later rounds."""
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
        self._held = [] if last else [entry for entry in self._held if entry[0] > number]
        if self.plan.has(Feature.OUT_OF_ORDER):
            now = self._dice.shuffled(now)
        # a late change of a deleted row comes after the delete, even in the last round
        now.sort(key=lambda draft: draft.late)
        return now + due

    def _file(self, draft: FileDraft, turn: int) -> ChangeFile:
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


# Writing of files: each appears whole, under a new name.

# `Path` has removed one slash of the address
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}:/")


def write_files(
    stream: FileStream,
    root: Path,
    *,
    interval: float = 0.0,
    on_round: Callable[[FileRound], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Write all rounds, with a pause between two, and return the counts."""
    address = _ADDRESS.match(str(root))
    if address or interval < 0:
        raise ConfigError(
            "simulated files need a local folder, and an interval of 0 or more seconds",
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


# The expected rows of the merged tables, as JSON.

TRUTH_VERSION = 1


def truth_document(model: ChangeModel) -> dict[str, Any]:
    """Return all tables with events, with their keys, columns and rows in canonical JSON.

    Rows are sorted by their key; a table without a key has all its remaining rows.
    """
    rows = model.truth(keyless=True)
    return {
        "version": TRUTH_VERSION,
        "source_type": str(model.plan.source_type),
        "seed": model.plan.seed,
        "tables": [_table(table, rows[table.shape.claim]) for table in model.seen],
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
