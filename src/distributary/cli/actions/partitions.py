"""How far each partition was read, against what the broker has now, if it answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distributary.cli.lakes import Lake, loaded_of
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number
from distributary.config.kafka import KafkaSource
from distributary.errors import DistributaryError
from distributary.observe.ledger import Ledger
from distributary.observe.status import PipelineStatus

_PATIENCE_SECONDS = 4.0

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition."""

    topic: str
    partition: int
    next_offset: int | None
    """The first offset that was not read yet; None before the first batch."""
    oldest: int | None
    newest: int | None
    """One past the newest record; None when the broker did not say it."""
    lag: int | None
    """Offsets between the two; None when the broker did not say it."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """All partitions of a pipeline."""

    asked: str
    """`broker`, or `ledger` where there was no broker to ask or it did not answer."""
    reason: str
    """Why the broker was not asked."""
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        """Over all partitions."""
        lags = [each.lag for each in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None


@dataclass(frozen=True, slots=True)
class _Ends:
    oldest: Mapping[Partition, int]
    newest: Mapping[Partition, int]


def find_partitions(call: Invocation, lake: Lake, status: PipelineStatus) -> Partitions:
    """What the ledger knows of a pipeline's partitions, and what its broker adds."""
    read = _read(lake, status)
    ends, reason = _ask(call, lake, status)
    if ends is None:
        known = [PartitionLag(*one, end, None, None, None) for one, end in sorted(read.items())]
        return Partitions("ledger", reason, tuple(known))
    every = sorted({*read, *ends.newest})
    return Partitions("broker", "", tuple(_lag(one, read, ends) for one in every))


def draw_partitions(paper: Paper, found: Partitions) -> None:
    """A row per partition, those furthest behind first."""
    rows = sorted(found.partitions, key=lambda p: (-(p.lag or 0), p.topic, p.partition))
    paper.table(
        ("TOPIC", "PARTITION", "NEXT", "NEWEST", "LAG"),
        (
            (
                each.topic,
                str(each.partition),
                number(each.next_offset),
                number(each.newest),
                styled(number(each.lag), "yellow" if each.lag else ""),
            )
            for each in rows
        ),
        right=("PARTITION", "NEXT", "NEWEST", "LAG"),
    )
    if found.asked == "ledger":
        paper.line(styled(f"  as of the last batch: {found.reason}", "dim"))
    elif found.lag is not None:
        count = counted(len(rows), "partition")
        paper.line(f"  {counted(found.lag, 'offset')} behind in {count}, by the broker")


def _lag(one: Partition, read: Mapping[Partition, int], ends: _Ends) -> PartitionLag:
    position, newest, oldest = read.get(one), ends.newest.get(one), ends.oldest.get(one)
    lag = None
    if newest is not None:
        # what was never read waits from its beginning, and what is deleted waits no more
        lag = max(newest - max(position or 0, oldest or 0), 0)
    return PartitionLag(*one, position, oldest, newest, lag)


def _read(lake: Lake, status: PipelineStatus) -> dict[Partition, int]:
    if status.last_batch is None:
        return {}
    ledger = Ledger(lake.path, storage_options=lake.options)
    # a reset begins a new life, with offsets of its own
    rows = ledger.read_ranges(status.name, life=status.last_batch.life).to_pylist()
    return {(row["topic"], row["partition"]): row["end"] for row in rows}


def _ask(call: Invocation, lake: Lake, status: PipelineStatus) -> tuple[_Ends | None, str]:
    try:
        source = loaded_of(call, lake, name=status.name, needs=("source",)).config.source
    except DistributaryError as error:
        return None, error.what
    if not isinstance(source, KafkaSource):
        return None, f"a source of type {source.type} has no broker"
    answers: list[_Ends] = []
    problems: list[str] = []

    def ask() -> None:
        try:
            answers.append(_ends(source))
        except Exception as error:
            problems.append(getattr(error, "what", type(error).__name__))

    # a broker that does not answer must not hold up everything else that is known
    thread = threading.Thread(target=ask, name="broker", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    if answers:
        return answers[0], ""
    return None, problems[0] if problems else "the broker does not answer"


def _ends(source: KafkaSource) -> _Ends:
    from distributary.source.kafka_offsets import Broker

    broker = Broker(source.client_options())
    partitions: Sequence[Partition] = broker.partitions(source.topics, source.topic_pattern)
    return _Ends(broker.earliest(partitions), broker.latest(partitions))
