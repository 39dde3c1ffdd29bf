from datetime import datetime
from typing import Any

import pytest

from distributary.errors import ConfigError
from distributary_lab.simulate.cdc.script import ChangeModel
from distributary_lab.simulate.cdc.shapes import (
    CALM,
    CHAOS,
    Carried,
    CdcFormat,
    CdcPlan,
    ColumnKind,
    Dice,
    Feature,
    SourceType,
    parse_features,
)
from distributary_lab.simulate.cdc.simulated_database import open_log


@pytest.mark.parametrize(
    "wrong",
    [
        {"tables": 0},
        {"events": -1},
        {"rows": -1},
        {"rounds": 0},
        {"rounds": 2, "features": CHAOS},
        {"file_events": 1},
        {"gzip": True},
        {"start": datetime(2024, 1, 1)},
        {"topic_prefix": ""},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CdcPlan(**wrong)


def test_events_are_split_evenly() -> None:
    plan = CdcPlan(events=103, rounds=5)
    counts = [plan.events_in(number) for number in range(5)]
    assert sum(counts) == 103
    assert max(counts) - min(counts) == 1


def test_features_have_names() -> None:
    assert parse_features(["bursts", "late_files"]) == {Feature.BURSTS, Feature.LATE_FILES}
    with pytest.raises(ConfigError):
        parse_features(["brusts"])
    assert CALM < CHAOS


def test_dice_fall_the_same_way_again() -> None:
    first, second = Dice(1, "x"), Dice(1, "x")
    throws = [first.below(10) for _ in range(100)]
    assert throws == [second.below(10) for _ in range(100)]
    assert throws != [Dice(1, "y").below(10) for _ in range(100)]
    assert set(throws) == set(range(10))
    assert max(first.below(10**30) for _ in range(50)) > 10**28
    assert first.some([], 0.5) == []
    assert sorted(first.shuffled(range(9))) == list(range(9))


@pytest.mark.parametrize("source_type", SourceType)
def test_places_in_a_log_only_grow(source_type: SourceType) -> None:
    log = open_log(CdcPlan(source_type=source_type, features=CHAOS))
    places = []
    for number in range(3_000):
        if number % 7 == 0:
            log.begin()
        if number == 100:
            log.roll_over()
        places.append(log.next())
    numbers = [place.numbers for place in places]
    assert numbers == sorted(set(numbers))
    assert all(part < 2**63 for place in numbers for part in place)
    # as texts, they are not in order
    told = [str(p.event_fields.get("lsn", p.event_fields.get("log_file", ""))) for p in places]
    if source_type in (SourceType.MYSQL, SourceType.POSTGRESQL):
        assert told != sorted(told)


@pytest.mark.parametrize("source_type", SourceType)
def test_tables_are_of_every_shape(source_type: SourceType) -> None:
    model = ChangeModel(CdcPlan(tables=12, events=0, source_type=source_type))
    shapes = [table.shape for table in model.tables]
    assert [shape.table.lower() for shape in shapes[:2]] == ["users", "orders"]
    assert {len(shape.key) for shape in shapes} == {0, 1, 2}
    assert {column.kind for shape in shapes for column in shape.columns} == set(ColumnKind)
    assert len({shape.claim for shape in shapes}) == len({shape.object for shape in shapes}) == 12
    more = ChangeModel(CdcPlan(tables=60, events=0, source_type=source_type))
    assert [table.shape for table in more.tables[:12]] == shapes
    assert len({table.shape.object for table in more.tables}) == 60


def test_every_type_is_carried_by_some_stream() -> None:
    carried = set()
    for source_type in SourceType:
        for format in CdcFormat:
            plan = CdcPlan(tables=12, events=0, source_type=source_type, format=format)
            for table in ChangeModel(plan).tables:
                carried |= {column.carried for column in table.shape.columns}
    assert carried == set(Carried)


def test_nothing_happens_without_events() -> None:
    model = ChangeModel(CdcPlan(tables=3, events=0, rows=0, rounds=1))
    assert [(round.reads, round.changes) for round in model.rounds()] == [([], [])]
    assert model.truth() == {}


def test_truth_is_about_rounds_that_were_read() -> None:
    model = ChangeModel(CdcPlan(tables=4, events=90, rounds=3))
    sizes = []
    for _ in model.rounds():
        sizes.append(sum(len(rows) for rows in model.truth(keyless=True).values()))
        for table in model.tables:
            rows = model.truth(keyless=True)[table.shape.claim]
            assert len(rows) == len(table.rows)
    assert len(set(sizes)) > 1
    assert len(model.truth()) == 3
