"""Schemas of records that came without any: a thousand cost a few looks at the folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributary.registry.record_schemas import FIRST_ID, InferredSchemas
from distributary.store.disk import Disk

WORD = {"type": ["null", "string"]}
NUMBER = {"type": ["integer", "null"]}


def documents(count: int) -> dict[str, Any]:
    return {
        f"t{n}": {"type": ["null", "object"], "properties": {f"own{n}": WORD}} for n in range(count)
    }


class Listings:
    """Counts what a store is asked to list; a disk walks through folders by asking itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._inside = threading.local()
        for name in ("files", "folders"):
            monkeypatch.setattr(Disk, name, self._counted(getattr(Disk, name)))

    def _counted(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            outer = not getattr(self._inside, "now", False)
            self.count += outer
            self._inside.now = True
            try:
                return ask(*args, **more)
            finally:
                self._inside.now = not outer

        return counted


def listings(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the listings that writing, reading in another process and asking again take."""
    with monkeypatch.context() as patched:
        listed = Listings(patched)
        InferredSchemas(folder).add(documents(count))
        found = [listed.count]
        again = InferredSchemas(folder)
        again.load([*documents(count), "unknown"])
        found.append(listed.count)
        for claim in documents(count):
            assert again.newest(claim).subjects[0].subject == claim
        assert again.document("unknown") is None
        found.append(listed.count)
    return found


def test_the_number_of_types_costs_no_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (listings(tmp_path / f"of{n}", n, monkeypatch) for n in (3, 60))
    assert few == many and many[1] == many[2]


def test_what_was_added_is_read_by_the_next_process(tmp_path: Path) -> None:
    first = InferredSchemas(tmp_path / "inferred")
    first.add(documents(3))
    first.add({"t1": WORD})
    again = InferredSchemas(tmp_path / "inferred")
    assert again.claims() == ("t0", "t1", "t2")
    assert [again.document(f"t{n}") for n in (0, 1)] == [documents(1)["t0"], WORD]
    assert again.newest("t1") == first.newest("t1") and again.newest("t1").id > FIRST_ID
    assert again.newest("t1").label() == "t1 v2"


def test_a_schema_that_held_before_holds_again(tmp_path: Path) -> None:
    schemas = InferredSchemas(tmp_path / "inferred")
    for document in (WORD, NUMBER, WORD, WORD):
        schemas.add({"t": document})
    assert InferredSchemas(tmp_path / "inferred").document("t") == WORD
    assert schemas.newest("t").label() == "t v3"


@pytest.mark.parametrize("trial", [True, False])
def test_a_forgotten_schema_is_learnt_again(tmp_path: Path, trial: bool) -> None:
    InferredSchemas(tmp_path / "inferred").add({"t": WORD})
    InferredSchemas(tmp_path / "inferred").forget("t")
    schemas = InferredSchemas(tmp_path / "inferred", trial=trial)
    assert schemas.document("t") is None
    schemas.add({"t": NUMBER})
    assert schemas.document("t") == NUMBER
