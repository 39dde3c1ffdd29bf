"""The catalog is kept in line beside the batches, whatever becomes of either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.catalog.base import CatalogEntry, Found
from distributary.config.load import load_text
from distributary.engine import registrar as registering
from distributary.engine.registrar import Registrar, _Wanted
from distributary.errors import CatalogError, CatalogUnavailableError
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.cards import CatalogState, read_catalog_state
from distributary.observe.events import CatalogUpdated, Event, EventBus, Idle
from tests.waiting import eventually


class Shelf:
    """A catalog in this process that can be made to fail or to hang."""

    parallel = 4

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.asked: list[str] = []
        self.down: CatalogError | None = None
        self.refused: set[str] = set()
        self.open = threading.Event()
        self.open.set()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.open.wait(60)
        if self.down is not None:
            raise self.down

    def prepare(self) -> None:
        self._ask("prepare")

    def entries(self) -> dict[str, Found]:
        self._ask("entries")
        return dict(self.found)

    def create(self, entry: CatalogEntry) -> None:
        self._ask(f"create {entry.name}")
        if entry.name in self.refused:
            raise CatalogError("no")
        self.found[entry.name] = Found(entry.location, entry.fingerprint)

    def update(self, entry: CatalogEntry) -> None:
        self._ask(f"update {entry.name}")
        self.found[entry.name] = Found(entry.location, entry.fingerprint)

    def drop(self, name: str) -> None:
        self._ask(f"drop {name}")

    def close(self) -> None:
        self.asked.append("close")


class Case:
    def __init__(self, root: Path) -> None:
        self.lake = root / "lake"
        (self.lake / "_distributary" / "pipelines" / "small").mkdir(parents=True)
        self.config = load_text(
            f"""
name: small
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9092", topics: [events]}}
payload: {{format: json}}
tables: {{each: "{{topic}}"}}
lake:
  path: {self.lake}
  catalog: {{type: unity, url: "http://127.0.0.1:1", name: main, schema: games}}
"""
        ).config
        self.shelf = Shelf()
        self.bus = EventBus()
        self.events: list[Event] = []
        self.bus.subscribe(self.events.append)
        self.started: list[Registrar] = []

    def start(self, *known: str) -> Registrar:
        settings = self.config.lake.registered_in
        assert settings is not None
        made = Registrar(
            self.config,
            settings,
            lambda: self.shelf,
            self.bus,
            known=lambda: [_Wanted(n, str(self.lake / n), "delta") for n in known],
        )
        self.started.append(made)
        return made

    def table(self, name: str, **columns: Any) -> TablePlan:
        rows = pa.table(columns or {"n": [1]})
        path = str(self.lake / name)
        write_deltalake(path, rows, mode="append", schema_mode="merge")
        fields = tuple(Column(f.name, f.type) for f in rows.schema)
        return TablePlan(name, Role.EACH, name, path, fields, exists=True)

    def read(self) -> CatalogState:
        found = read_catalog_state(str(self.lake), "small")
        assert found is not None
        return found

    def creations(self) -> list[str]:
        return sorted(a for a in self.shelf.asked if a.startswith("create"))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(registering, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(registering, "_LAST_PAUSE", 0.02)
    made = Case(tmp_path)
    yield made
    made.shelf.open.set()
    for each in made.started:
        each.close(patience=5)


def test_tables_are_registered_and_told(case: Case) -> None:
    registrar = case.start()
    registrar.want([case.table("a"), case.table("b")])
    registrar.close()
    assert case.creations() == ["create a", "create b"]
    told = [e for e in case.events if isinstance(e, CatalogUpdated)]
    assert (told[-1].registered, told[-1].waiting, told[-1].error) == (2, 0, "")
    assert (case.read().registered, case.read().place) == (2, "main.games")


def test_a_batch_that_changes_nothing_asks_nothing(case: Case) -> None:
    registrar = case.start()
    plans = [case.table(f"t{n}") for n in range(20)]
    registrar.want(plans)
    eventually(lambda: registrar.state.registered == 20, seconds=30)
    asked = len(case.shelf.asked)
    for _ in range(50):
        registrar.want(plans)
    registrar.close()
    assert case.shelf.asked[asked:] == ["close"]


def test_columns_follow(case: Case) -> None:
    registrar = case.start()
    registrar.want([case.table("a")])
    eventually(lambda: "a" in case.shelf.found, seconds=30)
    before = case.shelf.found["a"]
    registrar.want([case.table("a", n=[1], later=["x"])])
    registrar.close()
    assert "update a" in case.shelf.asked
    assert case.shelf.found["a"].fingerprint != before.fingerprint


def test_what_a_killed_process_left_out_is_found_by_the_next(case: Case) -> None:
    """One table is missing, one has columns of before, one is as it should be."""
    case.start("whole").close()
    case.table("whole")
    case.table("changed")
    case.start("whole", "changed").close()
    case.table("changed", n=[1], later=["x"])
    case.table("missing")
    case.shelf.asked.clear()
    case.start("whole", "changed", "missing").close()
    expected = ["prepare", "entries", "create missing", "update changed", "close"]
    assert sorted(case.shelf.asked) == sorted(expected)


def test_whoever_wants_something_never_waits(case: Case) -> None:
    case.shelf.open.clear()
    registrar = case.start()
    registrar.want([case.table("a")])
    registrar.want([case.table("b")])
    case.bus.publish(Idle(pipeline="small"))
    assert case.creations() == []
    case.shelf.open.set()
    registrar.close()
    assert case.creations() == ["create a", "create b"]


def test_a_catalog_that_hangs_does_not_hold_up_the_end(case: Case) -> None:
    case.shelf.open.clear()
    registrar = case.start()
    registrar.want([case.table("a")])
    registrar.close(patience=0.5)
    assert case.creations() == []


def test_tables_without_an_answer_at_the_end_are_a_problem(case: Case) -> None:
    case.shelf.open.clear()
    registrar = case.start()
    registrar.want([case.table("a"), case.table("b")])
    registrar.close(patience=0.5)
    assert (registrar.state.waiting, registrar.state.code) == (2, "CATALOG_UNAVAILABLE")
    assert case.read().problems[0].error == registrar.state.error
    told = [e for e in case.events if isinstance(e, CatalogUpdated)]
    assert (told[-1].waiting, told[-1].code) == (2, "CATALOG_UNAVAILABLE")


def test_a_thread_that_hangs_after_its_work_is_no_problem(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(case.shelf, "close", lambda: ended.wait(60))
    registrar = case.start()
    registrar.want([case.table("a")])
    eventually(lambda: registrar.state.registered == 1, seconds=30)
    registrar.close(patience=0.5)
    ended.set()
    assert (registrar.state.waiting, registrar.state.problems) == (0, ())


def test_a_failure_is_shown_and_tried_again(case: Case) -> None:
    case.shelf.down = CatalogUnavailableError("it is down", next_step="wait")
    registrar = case.start()
    registrar.want([case.table("a")])
    eventually(lambda: bool(registrar.state.problems), seconds=30)
    case.bus.publish(Idle(pipeline="small"))
    told = [e for e in case.events if isinstance(e, CatalogUpdated)]
    assert (told[-1].code, told[-1].waiting) == ("CATALOG_UNAVAILABLE", 1)
    assert case.read().problems[0].next_step == "wait"
    case.shelf.down = None
    eventually(lambda: registrar.state.registered == 1, seconds=30)
    case.bus.publish(Idle(pipeline="small"))
    told = [e for e in case.events if isinstance(e, CatalogUpdated)]
    assert (told[-1].registered, told[-1].error) == (1, "")
    eventually(lambda: case.read().problems == (), seconds=10)


def test_one_table_that_is_refused_holds_up_no_other(case: Case) -> None:
    case.shelf.refused.add("b")
    registrar = case.start()
    registrar.want([case.table(name) for name in ("a", "b", "c")])
    registrar.close()
    assert sorted(case.shelf.found) == ["a", "c"]
    state = registrar.state
    assert (state.registered, state.waiting) == (2, 1)
    assert [p.table for p in state.problems] == ["b"]


def test_what_fails_holds_up_nothing_new_and_asks_for_nothing_else(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.shelf.refused.add("bad")
    registrar = case.start()
    registrar.want([case.table(name) for name in ("bad", "good")])
    eventually(lambda: bool(registrar.state.problems), seconds=30)
    failing = case.shelf.asked.count("create bad")
    eventually(lambda: case.shelf.asked.count("create bad") >= failing + 3, seconds=60)
    # from the next try on, the pause before another is longer than anybody waits
    monkeypatch.setattr(registering, "_FIRST_PAUSE", 600.0)
    monkeypatch.setattr(registering, "_LONGEST_PAUSE", 600.0)
    failing = case.shelf.asked.count("create bad")
    eventually(lambda: case.shelf.asked.count("create bad") > failing, seconds=60)
    registrar.want([case.table("new")])
    eventually(lambda: "new" in case.shelf.found, seconds=60)
    assert case.shelf.asked.count("create good") == 1


def test_an_entry_of_somebody_else_is_never_touched(case: Case) -> None:
    theirs = Found("s3://elsewhere/a", "x")
    case.shelf.found["a"] = theirs
    registrar = case.start()
    registrar.want([case.table("a")])
    registrar.close()
    assert case.shelf.found["a"] == theirs
    assert registrar.state.problems[0].code == "CATALOG_CONFLICT"


def test_a_catalog_that_cannot_be_opened_is_a_failure_like_others(case: Case) -> None:
    def fails() -> Shelf:
        raise CatalogError("no certificate")

    settings = case.config.lake.registered_in
    assert settings is not None
    registrar = Registrar(case.config, settings, fails, case.bus, known=list)
    registrar.want([case.table("a")])
    registrar.close()
    assert (registrar.state.waiting, registrar.state.code) == (1, "CATALOG_REFUSED")


def test_a_state_that_is_damaged_is_none(case: Case) -> None:
    file = case.lake / "_distributary" / "pipelines" / "small" / "catalog.json"
    for text in ("", "[]", '{"format": 1}', '{"format": 1, "problems": [1], "at": 5}'):
        file.write_text(text)
        assert read_catalog_state(str(case.lake), "small") is None
