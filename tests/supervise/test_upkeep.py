"""A run from Python keeps its tables in order beside it, as the command does."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import distributary
from distributary.config.load import load_text
from distributary.engine import pipeline as engine
from distributary.operations.maintain import Report
from distributary.supervise.public_pipeline import Pipeline
from distributary.supervise.upkeep import summary

TEXT = """
name: kept
source: {type: delta, path: nowhere/wrapper, value: wrapper}
payload: {format: json}
tables: {each: "silver_{topic}"}
lake: {path: lake}
maintain: {every: 1s}
"""
SECONDS = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kept.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command that runs beside writes its arguments."""
    words = tmp_path / "words"
    script = tmp_path / "command.py"
    script.write_text(f"import sys\nopen({str(words)!r}, 'w').write(' '.join(sys.argv[1:]))\n")
    monkeypatch.setattr(
        "distributary.supervise.supervisor.own_command",
        lambda *arguments: (sys.executable, "-I", "-S", str(script), *arguments),
    )
    return words


def runs(monkeypatch: pytest.MonkeyPatch, until: Path | None = None) -> list[Any]:
    """Replace the batches of a run: it lasts until a file is there."""
    triggers: list[Any] = []

    def run(self: engine.Pipeline, *, trigger: Any, spark: Any) -> None:
        triggers.append(trigger)
        for _ in range(SECONDS * 10 if until is not None else 0):
            if until is not None and until.exists():
                break
            time.sleep(0.1)

    monkeypatch.setattr(engine.Pipeline, "run", run)
    return triggers


@pytest.mark.parametrize(("left", "text"), [(0, " s: "), (2, " s; 2 left for the next time: ")])
def test_the_line_of_an_upkeep_names_what_it_left(left: int, text: str) -> None:
    totals = Report("lake", ()).totals()
    report = {"seconds": 1.25, "totals": asdict(replace(totals, tables=1_200 + left, left=left))}
    line = summary(json.dumps(report))
    assert line.startswith(f"1,200 tables looked after in 1.2{text}0 files became 0")
    assert summary("killed") == "killed"


def test_the_package_gives_the_pipeline_that_is_maintained(file: Path) -> None:
    assert distributary.Pipeline is Pipeline
    assert type(distributary.Pipeline.load(file)) is Pipeline


@pytest.mark.parametrize("given", [{}, {"run.publish_threads": 2}])
def test_a_run_that_goes_on_is_maintained(
    file: Path, words: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    triggers = runs(monkeypatch, until=words)
    Pipeline.load(file, **given).run(trigger="continuous")
    assert words.read_text().split()[:2] == ["maintain", "--json"]
    assert words.read_text().endswith(str(file))
    assert [str(trigger) for trigger in triggers] == ["continuous"]


@pytest.mark.parametrize(
    ("trigger", "given"),
    [
        ("available_now", {}),
        ("continuous", {"lake.path": "elsewhere"}),
        ("continuous", {"maintain.every": "off"}),
        ("continuous", {"name": "another"}),
    ],
)
def test_what_ends_by_itself_or_differs_from_its_file_is_not(
    file: Path, trigger: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads the file: it would maintain the tables of another lake."""
    monkeypatch.setattr("distributary.supervise.upkeep.beside", pytest.fail)
    assert not runs(monkeypatch)
    Pipeline.load(file, **given).run(trigger=trigger)


def test_a_text_without_a_file_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.supervise.upkeep.beside", pytest.fail)
    runs(monkeypatch)
    Pipeline(load_text(TEXT, file="kept.yaml", environ={})).run(trigger="continuous")
