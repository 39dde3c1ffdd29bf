"""Which events share a file: those of one table, one schema, one way of reading, one minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.changes import Unit
from distributary.simulate.cdc.encoder import FileEncoder
from distributary.simulate.cdc.envelope import Event
from distributary.simulate.cdc.json_files import TIME_STYLES
from distributary.simulate.cdc.model import ModelRound
from distributary.simulate.cdc.plan import CdcPlan, Feature
from distributary.simulate.cdc.shapes import Shape
from distributary.simulate.dice import seed_for

_MINUTE = 60_000
_READ_AFTER = 5_000
_FIRST_NUMBER = 100_000
"""Names sort as numbers do as long as these have the same number of digits."""

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


class Drafts:
    """Puts the events of a round into files, and gives an id to each event and to each file."""

    def __init__(self, plan: CdcPlan, encoder: FileEncoder, dice: Dice) -> None:
        self._plan = plan
        self._encoder = encoder
        self._dice = dice
        self._events = 0
        self._files = 0

    def of(self, round: ModelRound) -> list[Draft]:
        """All files of a round, in the order in which they are listed."""
        drafts: list[Draft] = []
        read_ts = round.end + _READ_AFTER
        for group in self._groups(round):
            chunks = list(self._chunks(group))
            if self._plan.has(Feature.OUT_OF_ORDER):
                chunks.reverse()
            drafts += [self._draft(chunk, round.number, read_ts) for chunk in chunks]
        return drafts

    def again(self, draft: Draft, units: Sequence[EventUnit]) -> Draft:
        """Another file beside one, with events that it has already."""
        name = self.new_name(draft.shape, draft.method, schema_key=draft.name.partition("_")[0])
        return Draft(draft.folder, name, draft.shape, draft.method, list(units), draft.round)

    def new_name(self, shape: Shape, method: str, *, schema_key: str) -> str:
        """A name that no other file has."""
        self._files += 1
        place = seed_for(self._plan.seed, shape.object) % (1 << 32) - (1 << 31)
        number = _FIRST_NUMBER + self._files
        return f"{schema_key}_{method}_{place}_0_{number}"

    def _groups(self, round: ModelRound) -> list[list[Unit]]:
        groups: dict[tuple[int, str, int, bool], list[Unit]] = {}
        for unit in (*round.reads, *round.changes):
            first = unit[0]
            method = self._encoder.read_method(first)
            at = (id(first.shape), method, first.filed // _MINUTE, first.late)
            groups.setdefault(at, []).append(unit)
        return list(groups.values())

    def _chunks(self, units: list[Unit]) -> Iterator[list[Unit]]:
        most = self._plan.file_events
        if self._plan.has(Feature.OUT_OF_ORDER):
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

    def _draft(self, units: list[Unit], round: int, read_ts: int) -> Draft:
        first = units[0][0]
        method = self._encoder.read_method(first)
        minute = datetime.fromtimestamp(first.filed // _MINUTE * 60, UTC)
        folder = f"{first.shape.object}/{minute:%Y/%m/%d/%H/%M}"
        style = self._time_style()
        told: list[EventUnit] = []
        prefix, count = self._uuid_prefix(), 0
        for unit in units:
            events = []
            for change in unit:
                self._events += 1
                uuid = f"{prefix}{count:08x}"
                events.append(Event(self._events, change, uuid, read_ts, style))
                count += 1
            told.append(tuple(events))
        schema_key = self._encoder.schema(first.shape).key
        name = self.new_name(first.shape, method, schema_key=schema_key)
        return Draft(folder, name, first.shape, method, told, round, late=first.late)

    def _time_style(self) -> int:
        varied = self._plan.has(Feature.TIME_STYLES)
        return self._dice.below(TIME_STYLES) if varied else 0

    def _uuid_prefix(self) -> str:
        bits = f"{self._dice.bits():016x}{self._dice.bits():016x}"
        return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-8{bits[17:20]}-{bits[20:24]}"
