"""`produce games` and `produce people`, and what every producer says in the end."""

from __future__ import annotations

from typing import Any

from distributary.cli.actions.produce_target import Opened, Target, open_target
from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number, tally
from distributary.simulate import (
    DEFAULT_KINDS,
    DeltaSink,
    GamesPlan,
    PeoplePlan,
    Round,
    Sent,
    parse_kinds,
    produce_games,
    produce_people,
)
from distributary.simulate.serializers import protobuf_serializer

_SHARES = {"none": 0.0, "confluent": 1.0}
_WRAPPER, _PEOPLE = "wrapper", "people"


def send_games(
    call: Invocation,
    target: Target,
    *,
    rate: float | None,
    framing: str,
    bad_kinds: str | None,
    **numbers: Any,
) -> None:
    """Send the games."""
    kinds = parse_kinds(bad_kinds.split(",")) if bad_kinds else DEFAULT_KINDS
    plan = GamesPlan(framed=_SHARES.get(framing, "mixed"), bad_kinds=kinds, **numbers)
    with open_target(target, topic=_WRAPPER, sink=DeltaSink) as opened:
        sent = produce_games(
            plan, registry=opened.registry, sink=opened.sink, rate=rate, on_round=Teller(call)
        )
        show_sent(call, sent, opened)


def send_people(call: Invocation, target: Target, *, rate: float | None, **numbers: Any) -> None:
    """Send the people."""
    plan = PeoplePlan(subject=f"{target.topic or _PEOPLE}-value", **numbers)
    with open_target(target, topic=_PEOPLE, sink=plain_table) as opened:
        sent = produce_people(
            plan,
            registry=opened.registry,
            sink=opened.sink,
            framing=protobuf_serializer if target.is_kafka else None,
            rate=rate,
            on_round=Teller(call),
        )
        show_sent(call, sent, opened)


def plain_table(path: Any) -> DeltaSink:
    """A table of messages that say themselves what they are."""
    return DeltaSink(path, value_column="value", type_column=None)


class Teller:
    """Says after each round how far it is."""

    def __init__(self, call: Invocation) -> None:
        self._call, self._sent = call, 0

    def __call__(self, done: Round) -> None:
        """Called when a round was sent."""
        self._sent += done.sent().messages
        self._call.out.note(f"version {done.version}: {counted(self._sent, 'message')} sent")


def show_sent(call: Invocation, sent: Sent, opened: Opened) -> None:
    """What was sent, and to where."""
    data = opened.describe() | sent.as_dict()
    call.out.show(data, lambda paper: _draw(paper, sent, data, opened.name))


def _draw(paper: Paper, sent: Sent, data: dict[str, Any], name: str) -> None:
    good, bad = number(sent.good), number(sent.bad)
    paper.line(f"sent {counted(sent.messages, 'message')} to {name}: {good} good, {bad} bad")
    versions = sum(len(by_version) for by_version in sent.schema_ids.values())
    types, schemas = counted(len(sent.schema_ids), "type"), counted(versions, "schema version")
    paper.line(f"  {types}, {schemas}, {number(sent.framed)} with the registry's header")
    if "acknowledged" in data["to"]:
        paper.line(f"  {number(data['to']['acknowledged'])} acknowledged by the broker")
    if sent.rows != sent.good:
        paper.line(f"  {counted(sent.rows, 'row')} in the good ones")
    if sent.bad_by_code:
        paper.line(f"  bad ones: {tally(sent.bad_by_code)}")
    if sent.late:
        paper.line(f"  {number(sent.late)} of an old version came late")
