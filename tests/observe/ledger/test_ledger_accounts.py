"""The equation holds over any history of batches, parking, resuming and replaying."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from distributary.model.manifest import Counts
from distributary.observe.ledger.ledger_rows import BatchKey
from distributary.observe.ledger.recording import total


def test_a_replay_moves_dead_letters_and_reads_nothing_new():
    stream = (("p", "l", "stream", 0), Counts(100, 88, 12))
    replay = (("p", "l", "replay", 0), Counts(12, 7, 3, 2))
    assert total([stream, replay], {replay[0]: 2}) == Counts(100, 95, 3, 2)
    assert total([stream, replay], {}) == Counts(100, 97, 3, 0)


def test_more_than_was_parked_never_waits():
    batch = (("p", "l", "stream", 0), Counts(10, 8, 0, 2))
    assert total([batch], {batch[0]: 50}) == Counts(10, 8, 0, 2)


@dataclass
class Story:
    """A model of the truth: where every single source record is."""

    where: dict[int, str] = field(default_factory=dict)
    batches: list[tuple[BatchKey, Counts]] = field(default_factory=list)
    parked: dict[tuple[str, str, str, int], set[int]] = field(default_factory=dict)

    def run(self, lane, records, fates):
        key = ("p", "l", lane, len(self.batches))
        new = dict(zip(records, fates, strict=True))
        self.where |= new
        numbers = {fate: list(new.values()).count(fate) for fate in ("w", "d", "p", "s")}
        counts = Counts(len(new), numbers["w"], numbers["d"], numbers["p"], numbers["s"])
        self.batches.append((key, counts))
        self.parked[key] = {record for record, fate in new.items() if fate == "p"}

    def resume(self, index):
        for record in self.parked[self.batches[index][0]]:
            self.where[record] = "w"
        self.parked[self.batches[index][0]] = set()

    def truth(self):
        fates = list(self.where.values())
        return Counts(len(fates), *(fates.count(fate) for fate in ("w", "d", "p", "s")))

    def told(self):
        return total(self.batches, {key: len(records) for key, records in self.parked.items()})


@given(st.data())
def test_totals_equal_the_truth_after_every_step(data):
    story = Story()
    for _ in range(data.draw(st.integers(1, 8))):
        letters = sorted(record for record, fate in story.where.items() if fate == "d")
        step = data.draw(st.sampled_from(["stream", "replay", "resume"]))
        if step == "resume" and story.batches:
            story.resume(data.draw(st.integers(0, len(story.batches) - 1)))
        elif step == "replay" and letters:
            chosen = data.draw(st.lists(st.sampled_from(letters), unique=True, min_size=1))
            story.run("replay", chosen, data.draw(_fates(len(chosen))))
        else:
            start = len(story.where)
            size = data.draw(st.integers(0, 12))
            story.run("stream", range(start, start + size), data.draw(_fates(size)))
        assert story.told() == story.truth()
        assert story.told().balanced


def _fates(size):
    return st.lists(st.sampled_from("wwdps"), min_size=size, max_size=size)
