"""What was sent, so that a test can compare it with what arrived."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from distributary.simulate.cdc.changes import Change, Op
from distributary.simulate.cdc.envelope import change_type
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.shapes import Claim


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

    def add(self, number: int, change: Change) -> bool:
        """Count an event by its number; whether it is new."""
        if number in self._seen:
            self._duplicates += 1
            return False
        self._seen.add(number)
        self._types[Op.READ if change.op is Op.READ else change_type(change)] += 1
        self._tables[change.shape.claim] += 1
        first, last = self._times or (change.ts, change.ts)
        self._times = min(first, change.ts), max(last, change.ts)
        return True

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
