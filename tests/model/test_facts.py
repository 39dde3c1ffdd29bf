"""Facts come to the driver as tasks reported them; what the driver does not know is an error."""

from __future__ import annotations

from typing import get_args

import pytest

from distributary.errors import AccountingError
from distributary.model import facts
from distributary.model.change import ChangeFacts
from distributary.model.facts import Fact
from distributary.model.manifest import StagedFile
from distributary.model.routing import RouteKey
from distributary.model.rules.expectation import Action, RuleCount
from distributary.stage.job import Staged

ONE_OF_EACH: list[Fact] = [
    facts.RecordsRead(3, 1, 20, 5, {("t", 0): (7, 99)}, {"__debezium-heartbeat.a": 8}),
    facts.SortedRun("a.arrow", (facts.KeyRange(RouteKey("t", 1, (0, 2)), 0, 3, 5, 9),)),
    facts.LettersFile("letters.arrow"),
    facts.ShapeSeen("t", {"é": [1]}),
    facts.SchemaCarried('{"type": "string"}'),
    facts.EventsCounted("t_log", ChangeFacts({"insert": 2}, 4)),
    facts.RulesCounted("t", (RuleCount("r", Action.WARN, 5, 1),)),
    facts.RecordsSkipped(4),
    facts.RecordsFiltered("t", 6),
    facts.RecordsErased((("t", 0, 8, 1_700_000_000_000_000), ("t", 0, 9, None))),
    facts.DeadLettersCounted({"NOT_JSON": 2}),
    facts.FileStaged("t", 2, StagedFile("a.parquet", 10, 2, schema_ids=(1, 2))),
    facts.FileStaged("t", 1, None),
]


@pytest.mark.parametrize("fact", ONE_OF_EACH, ids=lambda fact: type(fact).__name__)
def test_a_fact_comes_back_from_its_document(fact: Fact) -> None:
    assert facts.decode(*facts.encode(fact)) == fact


def test_every_kind_is_tried_and_counted() -> None:
    assert {type(fact) for fact in ONE_OF_EACH} == {*get_args(Fact)}
    staged = Staged()
    staged.add(ONE_OF_EACH)
    assert (staged.seen, staged.skipped, staged.records["t"]) == (3, 5, 3)
    assert staged.filtered["t"] == 6
    assert staged.last == {("t", 0): (7, 99)}


def test_a_fact_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(AccountingError) as error:
        facts.decode("Moods", "{}")
    assert "Moods" in (error.value.evidence or "")


def test_bounds_of_integers_keep_their_digits() -> None:
    shape = {"type": "integer", "minimum": 1 - 10**38, "maximum": 10**38 - 1}
    fact = facts.ShapeSeen("orders", shape)
    assert facts.decode(*facts.encode(fact)) == fact
