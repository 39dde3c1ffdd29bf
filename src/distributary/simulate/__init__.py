"""The simulators: seeded, repeatable streams to develop, test, measure and show with."""

from distributary.simulate.base import ArrowSink, Message, SchemaSink, Sink
from distributary.simulate.delta import DeltaSink
from distributary.simulate.games import GamesPlan, produce_games, stream_rounds
from distributary.simulate.kinds import DEFAULT_KINDS, BadKind, parse_kinds
from distributary.simulate.people import PeoplePlan, produce_people, stream_people
from distributary.simulate.rounds import Round
from distributary.simulate.sent import Sent

__all__ = [
    "DEFAULT_KINDS",
    "ArrowSink",
    "BadKind",
    "DeltaSink",
    "GamesPlan",
    "Message",
    "PeoplePlan",
    "Round",
    "SchemaSink",
    "Sent",
    "Sink",
    "parse_kinds",
    "produce_games",
    "produce_people",
    "stream_people",
    "stream_rounds",
]
