"""Expectations on the command line: `status` shows what they found."""

from __future__ import annotations

from pathlib import Path

from distributary.model.manifest import Counts, Manifest, SourceRange, TableEntry
from distributary.model.rules.expectation import Action, RuleCount
from distributary.model.table import Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import BatchTimes
from distributary.publish.base import Outcome, Published
from tests.cli.conftest import Cli
from tests.lakes.written import NOON, make_lake


def settle_rules(lake: Path, tables: dict[str, tuple[RuleCount, ...]]) -> None:
    entries = tuple(
        TableEntry(TablePlan(name, Role.EACH, name, str(lake / name), ()), (), 0, rules=counts)
        for name, counts in tables.items()
    )
    manifest = Manifest(
        pipeline="games",
        life="life1",
        batch=1,
        epoch=1,
        ranges=(SourceRange("wrapper", 0, 30, 30, 0),),
        tables=entries,
        counts=Counts(),
        dead_letters={},
        schemas=(),
        created_at=NOON.isoformat(),
    )
    published = [Published(e.table.name, Outcome.PUBLISHED, version=1) for e in entries]
    times = BatchTimes(NOON, finished_at=NOON)
    Ledger(str(lake)).record(manifest, published, times=times, counts=Counts())


def test_status_shows_what_rules_found(own_folder: Path, cli: Cli) -> None:
    lake = make_lake(own_folder / "lake")
    assert "expectations" not in cli("status").out
    assert cli("status", "--json").json["pipelines"][0]["expectations"] == []
    kept = RuleCount("kept", Action.WARN, 10, 0)
    sane = RuleCount("sane", Action.DEAD_LETTER, 10, 3, first=("evil\x1b[31m", 0, 7))
    unfit = RuleCount("late", Action.FAIL, unfit="no column \x1bplayer")
    tables = {f"silver_{n}": (kept, sane, unfit) for n in range(5)}
    settle_rules(lake, tables)
    text = cli("status").out
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if "(" in line and "): " in line]
    assert len(lines) == 3
    assert "sane (dead_letter): broken by 15 of 50 rows: silver_0 3" in lines[0]
    assert "and 2 more tables" in lines[0]
    assert "kept (warn): kept by 50 rows of 5 tables" in text
    assert "not applied to silver_0 and 4 other tables: no column" in text
    found = cli("status", "--json").json["pipelines"][0]["expectations"]
    assert [(one["rule"], one["violated"]) for one in found] == [
        ("sane", 15),
        ("kept", 0),
        ("late", 0),
    ]
    assert found[2]["unfit_tables"] == 5


def test_a_hundred_rules_do_not_flood_the_screen(own_folder: Path, cli: Cli) -> None:
    lake = make_lake(own_folder / "lake")
    rules = tuple(RuleCount(f"r{n:03}", Action.WARN, 10, 0) for n in range(100))
    settle_rules(lake, {"silver_0": rules})
    text = cli("status").out
    assert "and 80 more rules" in text
    assert len(text.splitlines()) < 45
