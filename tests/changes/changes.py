"""Histories of changes, for properties: what a database may have done, delivered in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.changes.logs import Event, event

Batches = list[list[Event]]

REGIONS = ("EU", "US", None)


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    truncates: bool = True,
    left_out: bool = False,
    most: int = 14,
    ids: Sequence[Any] = (1, 2, 3, None),
) -> list[Event]:
    """Events of one table with one key, each at a place of its own, oldest first."""
    size = draw(st.integers(1, most))
    events = []
    for number in range(size):
        op = draw(st.sampled_from(["insert", "update", "update", "delete", "truncate"]))
        if op == "truncate" and (not truncates or draw(st.integers(0, 2))):
            op = "update"
        values: dict[str, Any] = {
            "id": draw(st.sampled_from(ids)),
            "region": draw(st.sampled_from(REGIONS)),
            "price": float(number),
        }
        e = event(number, op, **({} if op == "truncate" else values))
        if left_out and op == "update":
            names = draw(st.sets(st.sampled_from(["region", "price"])))
            e = Event(e.place, op, {**values, **dict.fromkeys(names)}, unchanged=tuple(names))
        events.append(e)
    return events


@st.composite
def moving_histories(draw: st.DrawFn, *, truncates: bool = True) -> list[Event]:
    """What a database writes whose rows change their keys, and that leaves large values out."""
    rows: set[int] = set()
    events: list[Event] = []
    for number in range(draw(st.integers(2, 14))):
        id_, other = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        if truncates and draw(st.integers(0, 14)) == 7:
            rows.clear()
            events.append(event(number, "truncate"))
        elif id_ not in rows:
            rows.add(id_)
            events.append(event(number, "insert", id=id_, region="EU", price=float(number)))
        elif other not in rows:
            rows ^= {id_, other}
            events += _move(draw, number, id_, other)
        elif draw(st.booleans()):
            events.append(_silent(draw, event(number, id=id_, region="US", price=float(number))))
        else:
            rows.remove(id_)
            gone = event(number, "delete", id=id_)
            events.append(replace(gone, unchanged=("region", "price")))
    return events


def _move(draw: st.DrawFn, number: int, old: int, new: int) -> list[Event]:
    gone = Event((1, number, 0, 0, 0, 0, f"{number}.0"), "delete", {"id": old}, deleted=True)
    values = {"id": new, "region": "FR", "price": float(number)}
    come = Event((1, number, 0, 0, 0, 1, f"{number}.1"), "insert", values, old_key={"id": old})
    pair = [replace(gone, unchanged=("region", "price")), _silent(draw, come)]
    # a topic's partitions are read at different speeds
    return pair[::-1] if draw(st.booleans()) else pair


def _silent(draw: st.DrawFn, e: Event) -> Event:
    names = draw(st.sets(st.sampled_from(["region", "price"])))
    return replace(e, values={**e.values, **dict.fromkeys(names)}, unchanged=tuple(names))


@st.composite
def rekeyed_histories(draw: st.DrawFn) -> list[Event]:
    """What a database writes whose key is `id`, then `id` and `region`, then `region` alone.

    At every moment its rows are unique by the key in force.
    """
    rows: set[tuple[int, str]] = set()
    events: list[Event] = []
    for key, steps in ((("id",), 6), (("id", "region"), 6), (("region",), 5)):
        rows = _make_unique(draw, rows, key, events)
        for _ in range(draw(st.integers(0, steps))):
            _change(draw, rows, key, events)
    return events


def _make_unique(
    draw: st.DrawFn, rows: set[tuple[int, str]], key: tuple[str, ...], events: list[Event]
) -> set[tuple[int, str]]:
    """Before a key can be put on a table, rows that it does not tell apart have to go."""
    before = events[-1].key if events else key
    kept: dict[Any, tuple[int, str]] = {}
    for row in sorted(rows):
        if _key(row, key) in kept:
            events.append(_event(events, "delete", row, before or key))
        else:
            kept[_key(row, key)] = row
    return set(kept.values())


def _change(
    draw: st.DrawFn, rows: set[tuple[int, str]], key: tuple[str, ...], events: list[Event]
) -> None:
    row = (draw(st.integers(1, 3)), draw(st.sampled_from(["EU", "US", "FR"])))
    same = [each for each in rows if _key(each, key) == _key(row, key)]
    if same and draw(st.integers(0, 3)) == 0:
        rows.remove(same[0])
        events.append(_event(events, "delete", same[0], key))
        return
    rows.difference_update(same)
    rows.add(row)
    events.append(_event(events, "update" if same else "insert", row, key))


def _event(events: list[Event], op: str, row: tuple[int, str], key: tuple[str, ...]) -> Event:
    number = len(events)
    made = event(number, op, id=row[0], region=row[1], price=float(number))
    return Event(made.place, op, made.values, key=key, deleted=op == "delete")


def _key(row: tuple[int, str], key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[0] if name == "id" else row[1] for name in key)


@st.composite
def deliveries(draw: st.DrawFn, events: list[Event], *, again: bool = True) -> Batches:
    """The events in any order, in any batches, some of them twice."""
    twice = draw(st.lists(st.sampled_from(events), max_size=3)) if again and events else []
    order = draw(st.permutations([*events, *twice]))
    return draw(cut(list(order)))


@st.composite
def cut(draw: st.DrawFn, events: list[Event]) -> Batches:
    """The same events in the same order, in batches."""
    batches: Batches = [[]]
    for e in events:
        if batches[-1] and draw(st.integers(0, 3)) == 0:
            batches.append([])
        batches[-1].append(e)
    return batches


@st.composite
def shuffled_in_batches(draw: st.DrawFn, events: list[Event]) -> Batches:
    """In the source's order from batch to batch, in any order within each."""
    return [draw(st.permutations(batch)) for batch in draw(cut(events))]
