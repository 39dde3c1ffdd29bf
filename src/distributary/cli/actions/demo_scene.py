"""What a demo is about: what is sent, to where, and which tables come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from distributary.cli.failure import usage_error
from distributary.cli.words import counted
from distributary.route.naming import propose
from distributary.simulate import GamesPlan, Round, stream_rounds
from distributary.simulate.base import Registry
from distributary.simulate.orders import OrdersPlan, stream_orders

_FIXED_TABLES = ("bronze_events", "unified_gold", "dead_letters")
_EMPTY_LISTS = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """One demo."""

    subject: str
    """Also the name of its pipeline."""
    title: str
    topic: str
    kafka: bool
    """Whether it needs a broker and a registry."""
    tables: tuple[str, ...]
    """The tables that it may make."""
    rounds: Callable[[Registry], Iterator[Round]]
    """Registers and gives one round after the other."""
    example: int
    """The offset of a record that is worth being looked for."""


def refuse(options: Mapping[str, object], subject: str) -> None:
    """Options that were given to a demo that has no use for them."""
    for name, value in options.items():
        if value is not None:
            raise usage_error(
                f"{name} means nothing for demo {subject}.", command="distributary demo"
            )


def games_scene(
    *,
    games: int | None = None,
    versions: int | None = None,
    records: int = 100,
    bad: int | None = None,
    seed: int = 999,
    kafka: bool = False,
) -> Scene:
    """Wrapped events of many games."""
    plan = GamesPlan(
        games=games or 20,
        versions=versions or 5,
        records=records,
        bad=3 if bad is None else bad,
        seed=seed,
    )
    title = (
        f"{counted(plan.games, 'game')}, {counted(plan.versions, 'schema version')} each, "
        f"{counted(plan.records, 'record')} per version, {counted(plan.bad, 'bad record')}"
    )
    each = (propose("silver_{type}", type=name).first for name in plan.names)
    return Scene(
        "games",
        title,
        "wrapper",
        kafka,
        (*_FIXED_TABLES, *each),
        lambda registry: stream_rounds(plan, registry=registry),
        example=min(42, plan.good - 1),
    )


def orders_scene(
    *,
    games: int | None = None,
    versions: int | None = None,
    records: int = 100,
    bad: int | None = None,
    seed: int = 999,
) -> Scene:
    """Lists of orders, some without the header that says what they are."""
    refuse({"--games": games}, "orders")
    bare = 1 if bad is None else bad
    plan = OrdersPlan(
        versions=versions or 2, records=records, empty=_EMPTY_LISTS, bare=bare, seed=seed
    )
    title = (
        f"{counted(plan.versions * plan.records, 'list')} of orders in "
        f"{counted(plan.versions, 'schema version')}, {counted(plan.empty, 'empty list')}, "
        f"{counted(bare, 'message')} without the registry's header"
    )
    return Scene(
        "orders",
        title,
        plan.topic,
        True,
        (*_FIXED_TABLES, propose("{topic}", topic=plan.topic).first),
        lambda registry: stream_orders(plan, registry=registry),
        # the first is never an empty list
        example=0,
    )
