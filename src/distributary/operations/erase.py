"""`erase`: removes records that match a condition from every layer of a lake, for good.

Rows are found by the condition in the tables that have its columns, and from there by their
coordinates (topic, partition, offset) everywhere else: bronze, the unified table, dead letters.
From tables that are made of a log, all rows with the keys of these records are removed
(`changes/erased_rows.py`). What was found is written down first
(`delta/removal/erased_records.py`); `engine/progress/erasure.py` removes it. Pipelines of the
lake must not run meanwhile, because the batch that they work on has been read.
"""

from __future__ import annotations

import csv
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.aggregate_tables import origin_of
from distributary.changes.erased_rows import LogKeys, RowsOfKeys
from distributary.config.base import hide_credentials
from distributary.config.rules.expressions import (
    ExpressionError,
    columns_of,
    enclosed,
    equal_values,
    valid_expression,
)
from distributary.delta.column_merge import columns_of as table_columns
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.removal.erased_records import (
    ErasedRecord,
    ErasedTable,
    ErasedValues,
    Erasure,
    KnownErased,
    digest,
    lake_key,
    new_id,
    texts_of,
    with_side_columns,
    write_erasure,
)
from distributary.delta.removal.row_removal import (
    RowSelection,
    matches_in,
    removal_refusal,
    rows_in,
)
from distributary.delta.tables import reaching_table
from distributary.engine.kill_points import ErasePoint, reached
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import CLAIMS, Claim
from distributary.engine.progress.erasure import (
    LogFamily,
    aggregate_order,
    carry_out,
    deleted_after,
    erasing,
    finish_erasures,
    held_by,
)
from distributary.errors import ConfigError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import LANES
from distributary.model.table import Column, Role
from distributary.observe.cards import Registration, registrations, trusted_checkpoint
from distributary.observe.deadletters import unfinished
from distributary.observe.erasures import (
    BY_KEY,
    ErasableTable,
    erased_rows,
    open_delta,
    tables_of,
)
from distributary.observe.ledger.ledger import Ledger
from distributary.shape.evaluation import ENGINE, Evaluation, as_numpy, engine_words
from distributary.store.base import Store, at, is_remote

_LEASE_SECONDS = 60.0
_SHOWN = 10
_MOST_SEARCHED = 1_000
"""Values that are searched for in the bytes of records."""
_SEARCHED_BY_RECORDS = (Role.BRONZE, Role.DEAD_LETTERS)
_NOT_BY_CONDITION = (*_SEARCHED_BY_RECORDS, Role.AGGREGATE)
"""The roles of tables in which no rows are searched for by the condition."""
_NO_PLACES = "its rows lack topic, partition and offset (tables.metadata)"


@dataclass(frozen=True, slots=True)
class EraseCondition:
    """The rows to erase: by an expression in SQL, or by values of some columns."""

    text: str = ""
    """The expression; it names columns of tables."""
    columns: tuple[str, ...] = ()
    """The columns of `values`, in lower case."""
    values: frozenset[tuple[str, ...]] = frozenset()
    """The values as texts, if the condition is only a list of values."""

    def named(self) -> frozenset[str]:
        """Return the columns that a table must have, in lower case."""
        if not self.text:
            return frozenset(self.columns)
        return frozenset(names[0].lower() for names in columns_of(self.text, repeatable=True))


def where(text: str) -> EraseCondition:
    """Return the condition of an expression. Raises ConfigError for anything but one."""
    from pydantic_core import PydanticCustomError

    try:
        checked = valid_expression(text, repeatable=True, constant=False)
        columns, values = equal_values(checked) or ((), frozenset())
    except (PydanticCustomError, ExpressionError) as error:
        raise ConfigError(
            f"the condition {error}",
            where="--where",
            next_step="write one expression over columns of a table, such as user_id = 'x'",
        ) from error
    return EraseCondition(checked, columns, values)


def keys_in(path: Path) -> EraseCondition:
    """Return the condition of a CSV file: names of columns first, then a line for each key."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file, strict=True) if line]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(
            "the file of keys cannot be read",
            where=str(path),
            evidence=f"{type(error).__name__}: {hide_credentials(str(error))[:200]}",
            next_step="name a CSV file in UTF-8",
        ) from error
    names = tuple(name.strip().lower() for name in lines[0]) if lines else ()
    uneven = next((n for n, line in enumerate(lines, 1) if len(line) != len(names)), 0)
    if not names or not all(names) or len(set(names)) != len(names) or len(lines) < 2 or uneven:
        raise ConfigError(
            "the file of keys has no column names, or no keys",
            where=str(path),
            evidence=f"line {uneven} has another number of values than line 1" if uneven else "",
            next_step="write the columns into the first line (user_id), and a key into each other",
        )
    return EraseCondition("", names, frozenset(tuple(line) for line in lines[1:]))


class MatchingRows:
    """The rows of one table that match a condition.

    Values of a list are compared as SQL does and as texts, also in side columns.
    """

    def __init__(self, condition: EraseCondition, columns: Sequence[Column]) -> None:
        have = {column.name.lower(): column for column in columns}
        named = [have[name] for name in sorted(condition.named())]
        sides = with_side_columns(columns)
        self.values = {name: sides[name] for name in condition.columns}
        """The columns of the values, with their side columns."""
        self._named = [column.name for column in named]
        self._known = KnownErased([_values_of(condition, b"")] if condition.values else [])
        self._evaluation: Evaluation[Any] | None = None
        schema = pa.schema([pa.field(column.name, column.type) for column in named])
        if condition.text and _is_condition(schema, condition):
            check = f"coalesce({enclosed(condition.text)}, false)"
            self._evaluation = Evaluation(schema, [check], as_numpy)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the condition reads."""
        beside = (name for names in self.values.values() for name in names)
        return tuple(dict.fromkeys([*self._named, *beside]))

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return None: every file is read."""
        return None

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that match. Raises ConfigError where they cannot be judged."""
        import duckdb

        found = self._known.with_values(rows, self.values)
        try:
            if self._evaluation is not None:
                answer = self._evaluation(rows.select(self._named))["v0"]
                found |= np.ma.filled(answer, False).astype(np.bool_)
        except duckdb.Error as error:
            ENGINE.reset()
            if not self.values:
                raise _unusable(engine_words(error)) from error
            # such as 7 among texts: what is equal is equal as a text
            self._evaluation = None
        return pa.chunked_array([pa.array(found)])


def _is_condition(schema: pa.Schema, condition: EraseCondition) -> bool:
    """Return whether SQL compares the values of a list with such types.

    Raise ConfigError for any other expression that is not true or false, or has no such types.
    """
    import duckdb

    try:
        (kind,) = ENGINE.types(schema, [enclosed(condition.text)])
    except duckdb.Error as error:
        if condition.values:
            return False
        raise _unusable(engine_words(error)) from error
    if kind != "BOOLEAN":
        raise _unusable(f"it gives {kind}, not true or false")
    return True


def _unusable(why: str) -> ConfigError:
    return ConfigError(
        "the condition cannot be evaluated",
        where="--where",
        evidence=why,
        next_step="compare a column with values of its own type, or use try_cast",
    )


def _values_of(condition: EraseCondition, key: bytes) -> Erasure:
    columns = condition.columns
    digests = frozenset(digest(key, columns, texts) for texts in condition.values)
    return Erasure("", "", values=(ErasedValues(columns, digests),))


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, and what an erasure would remove from it."""

    table: ErasableTable
    rows: int = 0
    files: int = 0
    bytes: int = 0
    by_condition: bool = False
    """Whether the table has the columns of the condition."""
    refused: str = ""
    """The reason why its rows cannot be erased."""
    deleted_after: datetime | None = None
    """The time at which `vacuum` deletes the files that left the table."""
    held_by: tuple[str, ...] = ()
    """The pinned cuts that keep its older versions."""


@dataclass(frozen=True, slots=True)
class ErasableRows:
    """Everything that an erasure would remove."""

    tables: tuple[FoundTable, ...] = ()
    records: tuple[ErasedRecord, ...] = ()
    values: tuple[ErasedValues, ...] = ()
    raw: int = 0
    """The number of records in no table whose bytes contain one of the values."""
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Return the rows of all layers."""
        return sum(table.rows for table in self.tables)

    @property
    def refused(self) -> tuple[FoundTable, ...]:
        """Return the tables from which rows cannot be erased."""
        return tuple(table for table in self.tables if table.refused)


def find(
    lake: str, condition: EraseCondition, *, raw: bool = False, key: bytes = b""
) -> ErasableRows:
    """Find the records of a condition in every layer of a lake, and change nothing.

    With `raw` also records in no table per type, whose bytes hold one of the values. Without the
    lake's `key`, the values are hashed by a key that is not stored.
    """
    return _Search(lake, condition, raw, key or secrets.token_bytes(32)).found()


@dataclass(slots=True)
class _Search:
    """The search for the rows of one erasure."""

    lake: str
    condition: EraseCondition
    raw: bool
    key: bytes
    records: set[ErasedRecord] = field(default_factory=set)
    texts: set[tuple[str, ...]] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)
    """The folders of logs that are kept, and of the tables that are made of them."""
    keys: dict[str, RowsOfKeys] = field(default_factory=dict)
    """The rows to remove from tables that are made of a log, by folder."""
    matching: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def found(self) -> ErasableRows:
        tables = tables_of(self.lake)
        states = {table.folder: self._open(table) for table in tables}
        self.texts |= self.condition.values
        by_folder = {table.folder: table for table in tables}
        logs = [LogFamily.of(self.lake, t, by_folder) for t in tables if t.role == Role.LOG]
        for table in tables:
            if table.role not in BY_KEY:
                self._by_condition(table, states[table.folder])
        for family in logs:
            self._by_key(family, states)
        for table in tables:
            if table.role in BY_KEY and table.folder not in self.families:
                self._without_log(table, states[table.folder])
        for family in logs:
            self._complete(family, states)
        extra = self._raw_records(tables, states)
        if self.raw and extra:
            self.records |= extra
            for family in logs:
                self._complete(family, states)
        values = self._values()
        known = KnownErased([Erasure("", "", tuple(self.records), values)], self.key)
        found = [self._measured(t, states[t.folder], known) for t in tables]
        self._aggregates(found)
        if not self.matching:
            names = ", ".join(sorted(self.condition.named()))
            self.notes.append(f"no table has all columns of the condition: {names}")
        # without a table that knows the column, a value such as 3 is in most records by chance
        if extra and self.matching and not self.raw:
            self.notes.append(
                f"{len(extra):,} records whose bytes hold a value are in no table that has its "
                "column: dead letters, filtered records, and those of tables that name the column "
                "otherwise; they stay without --raw"
            )
        return ErasableRows(
            tuple(found),
            tuple(sorted(self.records, key=lambda r: (*r[:3], r[3] or 0))),
            values,
            len(extra),
            tuple(self.notes),
        )

    def _open(self, table: ErasableTable) -> Snapshot | None:
        state, why = open_delta(table)
        if why:
            self.refused[table.folder] = why
        return state

    def _by_condition(self, table: ErasableTable, state: Snapshot | None) -> None:
        """Add the coordinates of a table's matching rows."""
        if state is None or table.role in _NOT_BY_CONDITION:
            return
        rule = self._rule(table, state)
        if rule is None:
            return
        places = table.places.names(column.name for column in table_columns(state.fields))
        with reaching_table(table.folder):
            rows = rows_in(state, rule, tuple(dict.fromkeys([*places, *rule.columns])))
        if not rows.num_rows:
            return
        if not places:
            if not self.condition.values:
                self.refused[table.folder] = _NO_PLACES
            elif self._has_raw_layers(table):
                why = f"{_NO_PLACES}, so that bronze and the unified table cannot be searched"
                self.refused[table.folder] = why
        else:
            self.records |= set(_records(rows, places))
        self._remember_texts(table, rows, rule)

    def _rule(self, table: ErasableTable, state: Snapshot) -> MatchingRows | None:
        """Return the matching rows of a table; None if it lacks a column of the condition."""
        columns = table_columns(state.fields)
        if not self.condition.named() <= {column.name.lower() for column in columns}:
            return None
        self.matching.add(table.folder)
        return MatchingRows(self.condition, columns)

    def _remember_texts(self, table: ErasableTable, rows: pa.Table, rule: MatchingRows) -> None:
        """Add the values of matching rows, as their columns spell them."""
        if not self.condition.values:
            return
        try:
            texts = [texts_of(rows, names).to_pylist() for names in rule.values.values()]
            self.texts |= set(zip(*texts, strict=True))
        except pa.ArrowException:
            self.refused[table.folder] = "a column of the condition has values that are not text"

    def _by_key(self, family: LogFamily, states: Mapping[str, Snapshot | None]) -> None:
        """Add the keys of matching events and rows of a log's tables."""
        members = (family.log, *family.merged)
        self.families |= {table.folder for table in members}
        state = states[family.log.folder]
        found = [(t, rule) for t in members if (rule := self._matching(t, states[t.folder]))]
        if state is None or not found:
            return
        with reaching_table(family.log.folder):
            keys = self._keys_of(family.log, state)
            for table, rule in found if keys.definition else ():
                if (own := states[table.folder]) is not None:
                    self._add_keys(family, keys, keys.texts(own, rule))

    def _keys_of(self, log: ErasableTable, state: Snapshot) -> LogKeys:
        keys = LogKeys.of(state)
        if not log.places.names(column.name for column in table_columns(state.fields)):
            keys = LogKeys(refused=_NO_PLACES)
        if keys.refused:
            self.refused[log.folder] = keys.refused
        return keys

    def _add_keys(self, family: LogFamily, keys: LogKeys, texts: frozenset[str]) -> bool:
        """Add keys whose rows are to be removed; return whether one of them was new."""
        known = self.keys.get(family.log.folder, RowsOfKeys((), frozenset())).keys
        chosen = RowsOfKeys(keys.definition, known | texts)
        self.keys |= dict.fromkeys((t.folder for t in (family.log, *family.merged)), chosen)
        return not texts <= known

    def _complete(self, family: LogFamily, states: Mapping[str, Snapshot | None]) -> None:
        """Add all records of each key that has an erased record, and all keys of these records.

        A record whose payload is an array may have events of several keys.
        """
        log, state = family.log, states[family.log.folder]
        if state is None or log.folder in self.refused:
            return
        with reaching_table(log.folder):
            known = KnownErased([Erasure("", "", tuple(self.records))])
            if log.folder not in self.keys and not matches_in(
                state, erased_rows(state, log, known)
            ):
                return
            keys = self._keys_of(log, state)
            places = log.places.names(column.name for column in table_columns(state.fields))
            more = bool(keys.definition)
            while more:
                if log.folder in self.keys:
                    self.records |= set(
                        _records(rows_in(state, self.keys[log.folder], places), places)
                    )
                known = KnownErased([Erasure("", "", tuple(self.records))])
                texts = keys.texts(state, erased_rows(state, log, known))
                more = self._add_keys(family, keys, texts)

    def _matching(self, table: ErasableTable, state: Snapshot | None) -> MatchingRows | None:
        """Return the matching rows of a table of a log; None if it has none."""
        rule = None if state is None else self._rule(table, state)
        if state is None or rule is None:
            return None
        rows = rows_in(state, rule, rule.columns)
        if not rows.num_rows:
            return None
        self._remember_texts(table, rows, rule)
        return rule

    def _without_log(self, table: ErasableTable, state: Snapshot | None) -> None:
        """Refuse a table with matching rows that is made of a log which is not kept."""
        if self._matching(table, state) is not None:
            self.refused[table.folder] = "it is made of a log that is not kept (cdc.log)"

    def _aggregates(self, found: Sequence[FoundTable]) -> None:
        """Add a note for each aggregate table that an erasure cannot bring up to date."""
        tables = [one.table for one in found]
        changed = {one.table.table for one in found if one.rows}
        for table in tables:
            if table.role != Role.AGGREGATE or aggregate_order(table, tables) is not None:
                continue
            with reaching_table(table.folder):
                origin = origin_of(table.folder)
            if origin is not None and origin[0] in changed:
                self.notes.append(
                    f"{table.table} holds groups of these rows until the next batch of "
                    f"{origin[0]}: `distributary rebuild {table.table}` removes them at once"
                )

    def _has_raw_layers(self, table: ErasableTable) -> bool:
        others = (t for t in tables_of(self.lake) if {*t.pipelines} & {*table.pipelines})
        # the unified table has fields as JSON text, too
        return any(other.role in (Role.BRONZE, Role.UNIFIED) for other in others)

    def _values(self) -> tuple[ErasedValues, ...]:
        """Return the values to remember, hashed."""
        if not self.condition.values:
            self.notes.append(
                "only the records that were found are kept from coming back: the condition is not "
                "a list of values, so new records that match it are written"
            )
            return ()
        columns = self.condition.columns
        texts = {text for text in self.texts if None not in text}
        return (ErasedValues(columns, frozenset(digest(self.key, columns, t) for t in texts)),)

    def _raw_records(
        self, tables: Sequence[ErasableTable], states: dict[str, Snapshot | None]
    ) -> set[ErasedRecord]:
        """Return the records of bronze and dead letters whose bytes hold a value."""
        needles = sorted({text for texts in self.texts for text in texts if text})
        if not needles:
            return set()
        if len(needles) > _MOST_SEARCHED:
            self.notes.append(
                f"records that no table has were not searched for {len(needles):,} values"
            )
            return set()
        found: set[ErasedRecord] = set()
        for table in tables:
            state = states[table.folder]
            if state is None or table.role not in _SEARCHED_BY_RECORDS:
                continue
            holding = _HoldingBytes.of(state, needles)
            places = table.places.names(column.name for column in table_columns(state.fields))
            with reaching_table(table.folder):
                found |= set(_records(rows_in(state, holding, places), places))
        return found - self.records

    def _measured(
        self, table: ErasableTable, state: Snapshot | None, known: KnownErased
    ) -> FoundTable:
        """Return the rows to remove from a table, by records and by values."""
        why = self.refused.get(table.folder, "")
        by_condition = table.folder in self.matching
        if state is None or table.role == Role.AGGREGATE:
            return FoundTable(table, refused=why)
        rows: RowSelection = erased_rows(state, table, known)
        if table.role in BY_KEY - {Role.LOG}:
            rows = self.keys.get(table.folder, RowsOfKeys((), frozenset()))
        with reaching_table(table.folder):
            matches = matches_in(state, rows) if rows.columns else []
        count = sum(match.gone for match in matches)
        if count and not why:
            why = removal_refusal(state)
        return FoundTable(
            table,
            count,
            len(matches),
            sum(match.bytes for match in matches),
            by_condition,
            why,
            deleted_after(state) if count else None,
            tuple(held_by(self.lake, table.folder)) if count else (),
        )


@dataclass(frozen=True, slots=True)
class _HoldingBytes:
    """The rows of bronze or of dead letters whose bytes contain one of the texts."""

    columns: tuple[str, ...]
    needles: Sequence[str]

    @classmethod
    def of(cls, state: Snapshot, needles: Sequence[str]) -> _HoldingBytes:
        binary = (c.name for c in table_columns(state.fields) if pa.types.is_binary(c.type))
        return cls(tuple(name for name in binary if name in ("payload", "key", "value")), needles)

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return None: every file is read."""
        return None

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that hold a text."""
        found = pa.array(np.zeros(rows.num_rows, np.bool_))
        for name in self.columns:
            for needle in self.needles:
                here = pc.match_substring(rows.column(name), needle)
                found = pc.or_(found, pc.fill_null(here, False))
        return found


def _records(rows: pa.Table, places: Sequence[str]) -> Iterator[ErasedRecord]:
    """Yield the records that rows came from."""
    topic, partition, offset, *time = (rows.column(name) for name in places)
    times = time[0].cast(pa.int64()).to_pylist() if time else [None] * rows.num_rows
    values = zip(topic.to_pylist(), partition.to_pylist(), offset.to_pylist(), times, strict=True)
    yield from (value for value in values if None not in value[:3])


# The erasure itself.


def erase(
    lake: str, condition: EraseCondition, *, raw: bool = False
) -> tuple[ErasableRows, dict[str, Any]]:
    """Erase the records of a condition; return what was found and the certificate.

    Unfinished erasures are completed first. Raises OwnedError while a pipeline of the lake runs,
    and ConfigError for layers that cannot be erased: then nothing was changed.
    """
    finish_erasures(lake, later=True)
    with stopped_pipelines(lake) as check:
        refuse_unsettled(lake)
        found = find(lake, condition, raw=raw, key=lake_key(lake))
        refuse(found)
        now = datetime.now(UTC).isoformat()
        tables = tuple(
            ErasedTable(t.table.table, t.table.role, layout.inside(lake, t.table.folder), t.rows)
            for t in found.tables
            if t.rows
        )
        erasure = Erasure(new_id(now), now, found.records, found.values, tables, found.notes)
        with erasing(lake) as own:
            check()
            own()
            write_erasure(lake, erasure)
            reached(ErasePoint.AFTER_DOCUMENT, 0)
            _drop_read_ahead(lake)
            return found, carry_out(lake, f"{erasure.id}.json", own)


def refuse(found: ErasableRows) -> None:
    """Raise ConfigError if a layer with matching rows cannot be erased."""
    blocking = found.refused
    if not blocking:
        return
    raise ConfigError(
        f"records in {len(blocking):,} tables cannot be erased: nothing was changed",
        code=ErrorCode.ERASE_REFUSED,
        where=", ".join(t.table.table for t in blocking[:_SHOWN]),
        evidence="; ".join(f"{t.table.table}: {t.refused}" for t in blocking[:_SHOWN]),
        next_step="erase these by hand, or remove the reason; --dry-run shows all tables",
    )


def refuse_unsettled(lake: str) -> None:
    """Raise ConfigError while batches are decided, parked or to be replayed."""
    parked = sorted({row.table for row in Ledger(lake).parked()})
    if parked:
        raise _unsettled(
            f"batches of {len(parked):,} tables are parked: their files hold records",
            ", ".join(parked[:_SHOWN]),
            "`distributary resume TABLE` for each of them first",
        )
    for card in registrations(lake):
        checkpoint = _checkpoint(card, lake)
        if checkpoint is None:
            continue
        for lane in ("stream", *LANES):
            folder = "manifests" if lane == "stream" else lane
            manifests = Manifests(checkpoint.below(folder))
            if manifests.settled() < manifests.newest() or (
                lane != "stream" and unfinished(checkpoint, lane)
            ):
                raise _unsettled(
                    f"a batch of pipeline {card.name} is decided and not in all tables yet",
                    checkpoint.address,
                    "run the pipeline once, which finishes it (for a replay: `distributary dlq "
                    "replay`)",
                )


def _unsettled(what: str, evidence: str, next_step: str) -> ConfigError:
    return ConfigError(
        what,
        code=ErrorCode.ERASE_REFUSED,
        where="erase",
        evidence=evidence,
        next_step=f"{next_step}; then erase",
    )


@contextmanager
def stopped_pipelines(lake: str) -> Iterator[Callable[[], None]]:
    """Hold the claims of all pipelines of a lake. Raises OwnedError while one of them runs."""
    with ExitStack() as held:
        claims: list[Claim] = []
        for card in registrations(lake):
            checkpoint = _checkpoint(card, lake)
            if checkpoint is None:
                continue
            lanes = [checkpoint.below(lane) for lane in LANES if lane != "stream"]
            for place in (checkpoint, *(lane for lane in lanes if lane.exists(CLAIMS))):
                claim = Claim.take(place, lease=_LEASE_SECONDS)
                held.callback(claim.release)
                claims.append(claim)

        def check() -> None:
            for claim in claims:
                claim.check()

        yield check


def _checkpoint(card: Registration, lake: str) -> Store | None:
    """Return the checkpoint of a pipeline; None if it has none yet.

    Raises ConfigError for one that only the lake knows: others may write to the lake.
    """
    inside = is_remote(lake) and card.checkpoint.startswith(layout.join(lake, ""))
    if not inside and trusted_checkpoint(card, lake) is None:
        raise ConfigError(
            f"the checkpoint of pipeline {card.name} is known only by the lake",
            code=ErrorCode.FILE_NOT_TRUSTED,
            where=card.checkpoint,
            next_step="erase as the user of the pipeline, on that machine; if the pipeline "
            "is gone, `distributary clean` removes its card",
        )
    place = at(card.checkpoint)
    return place if place.exists() else None


def _drop_read_ahead(lake: str) -> None:
    """Remove sorted records of batches that were read ahead and never decided."""
    for card in registrations(lake):
        checkpoint = _checkpoint(card, lake)
        if checkpoint is not None and "runs" in checkpoint.folders():
            checkpoint.remove_folder("runs")
