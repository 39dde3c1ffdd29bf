"""A round of messages: made when it is read, counted while it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat

import pyarrow as pa

from distributary.simulate.base import Message
from distributary.simulate.sent import Sent


class Tally:
    """Counts what a round has sent so far."""

    def __init__(self, *, first_position: int = 0) -> None:
        self.first_position = first_position
        self.framed = 0
        self.late = 0
        self.extra_rows = 0
        """Rows beyond one for each good message; below 0 where lists are empty."""
        self.good: Counter[tuple[str, int]] = Counter()
        """By type and version."""
        self.bad: Counter[str] = Counter()
        self.first_bad: dict[str, int] = {}
        self.first_time: int | None = None
        self.last_time: int | None = None

    def add_bad(self, code: str, *, position: int) -> None:
        """Count a bad message."""
        self.bad[str(code)] += 1
        self.first_bad.setdefault(str(code), position)

    def add_times(self, first: int, last: int) -> None:
        """Note the times of the first and the last of some messages."""
        self.first_time = first if self.first_time is None else self.first_time
        self.last_time = last


class Round:
    """The messages that come with one version. Read it once, by `messages` or by `arrow`."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        *,
        number: int,
        version: int,
        tally: Tally,
        schema_ids: dict[str, dict[int, int]],
        columns: dict[str, tuple[str, ...]],
        type_changes: dict[str, str],
    ) -> None:
        self.number = number
        """Counts from 0."""
        self.version = version
        self._batches = batches
        self._tally = tally
        self._schema_ids = schema_ids
        self._columns = columns
        self._type_changes = type_changes

    def messages(self) -> Iterator[Message]:
        """The messages, one by one."""
        for batch in self._batches:
            millis = batch["produced_at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            yield from map(
                Message,
                batch["key"].to_pylist(),
                batch["value"].to_pylist(),
                repeat(()),
                millis.to_pylist(),
                batch["type"].to_pylist(),
            )

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """The same messages as columns of schema `MESSAGES`."""
        return self._batches

    def sent(self) -> Sent:
        """What has been made of this round so far: all of it once it has been read to its end."""
        tally = self._tally
        per_type: dict[str, dict[int, int]] = {}
        for (kind, version), n in tally.good.items():
            per_type.setdefault(kind, {})[version] = n
        return Sent(
            messages=tally.good.total() + tally.bad.total(),
            good=tally.good.total(),
            bad=tally.bad.total(),
            framed=tally.framed,
            late=tally.late,
            rows=tally.good.total() + tally.extra_rows,
            first_position=tally.first_position,
            last_position=tally.first_position + tally.good.total() + tally.bad.total() - 1,
            first_time=tally.first_time,
            last_time=tally.last_time,
            bad_by_code=dict(tally.bad),
            first_bad=dict(tally.first_bad),
            per_type=per_type,
            schema_ids={kind: dict(ids) for kind, ids in self._schema_ids.items()},
            columns=dict(self._columns),
            type_changes=dict(self._type_changes),
        )
