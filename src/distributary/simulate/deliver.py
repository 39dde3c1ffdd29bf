"""Brings rounds to a sink, as fast as it takes them or at a pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from distributary.errors import ConfigError
from distributary.simulate.base import ArrowSink, Message, Sink
from distributary.simulate.rounds import Round
from distributary.simulate.sent import Sent

BEATS_PER_SECOND = 2
"""How often a paced stream writes: each write to a table is a commit."""


def deliver(
    rounds: Iterable[Round],
    *,
    sink: Sink,
    rate: float | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Sent:
    """Write all rounds, each as one write or, with a rate in messages a second, as several."""
    parts = []
    for each in rounds:
        if rate is not None:
            for beat in paced(each.messages(), rate=rate):
                sink.write(beat)
        elif isinstance(sink, ArrowSink):
            sink.write_arrow(each.arrow())
        else:
            sink.write(each.messages())
        parts.append(each.sent())
        if on_round is not None:
            on_round(each)
    return Sent.total(parts)


def paced(
    messages: Iterable[Message],
    *,
    rate: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[Message]]:
    """Messages in handfuls, each handed out when it is due."""
    if not rate > 0:
        raise ConfigError(
            "a pace must be above 0 messages a second",
            where="rate",
            evidence=repr(rate),
            next_step="leave it out to go as fast as possible",
        )
    size = max(1, round(rate / BEATS_PER_SECOND))
    start, handed_out = clock(), 0
    source = iter(messages)
    while beat := list(islice(source, size)):
        ahead = start + handed_out / rate - clock()
        if ahead > 0:
            sleep(ahead)
        yield beat
        handed_out += len(beat)
