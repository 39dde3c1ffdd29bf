"""The stream as files: what a folder gets round by round, with everything that goes wrong there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from distributary.errors import ConfigError
from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.drafts import Draft, Drafts, EventUnit
from distributary.simulate.cdc.encoder import FileEncoder
from distributary.simulate.cdc.envelope import Event
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.noise import noise
from distributary.simulate.cdc.plan import CdcPlan, Feature
from distributary.simulate.cdc.sent import CdcSent, CdcTally

_AGAIN, _MIXED, _LATE, _BARE = 0.06, 0.12, 0.1, 0.25
_REMEMBERED = 8


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
        self._drafts = Drafts(plan, self._encoder, self._dice)
        self._tally = CdcTally(self.model)
        self._held: list[tuple[int, Draft]] = []
        self._past: dict[tuple[int, str], deque[EventUnit]] = {}
        self._quiet: set[str] = set()

    def rounds(self) -> Iterator[FileRound]:
        """Round by round, made when it is asked for."""
        for round in self.model.rounds():
            drafts = self._drafts.of(round)
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

    def _noise(self, drafts: Sequence[Draft]) -> list[ChangeFile]:
        made = noise(drafts, self._drafts, encoder=self._encoder, dice=self._dice)
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
            units = self._dice.some(draft.units, share)
            again.append(self._drafts.again(draft, sorted(units, key=lambda unit: unit[0].number)))
            again[-1].waits = self._dice.below(2)
        known = [draft for draft in drafts if self._remembered(draft)]
        picked = self._dice.some(known, _MIXED)
        for draft in picked:
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
