"""The colours of states on the page: each state has its own meaning, and none is left grey."""

from __future__ import annotations

import re
from pathlib import Path

import distributary.web
from distributary.observe.metrics import STATES
from distributary.observe.status.health import Health

STATIC = Path(distributary.web.__file__).parent / "static"
EVERY = {*STATES, "crashed", "new", "unknown"}


def colours() -> dict[str, str]:
    text = (STATIC / "parts.js").read_text().partition("const WORDS = {")[2].partition("};")[0]
    return {name: colour for name, colour in re.findall(r'"?(\w[\w ]*)"?: "(\w+)"', text)}


def test_failed_and_done_and_stopped_look_different() -> None:
    looks = colours()
    assert {state: looks[state] for state in ("failed", "done", "stopped")} == {
        "failed": "bad",
        "done": "ok",
        "stopped": "quiet",
    }
    assert {state for state in EVERY if looks[state] == "bad"} == {"failed", "crashed", "retrying"}


def test_no_table_in_trouble_is_grey() -> None:
    looks = colours()
    assert {health for health in Health if looks[health] == "quiet"} == {Health.ABSENT}


def test_the_first_page_counts_pipelines_in_every_state() -> None:
    text = (STATIC / "views" / "overview.js").read_text()
    listed = re.search(r"const states = \[([^\]]*)\]", text)
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == EVERY


def test_a_run_without_a_process_says_how_it_ended() -> None:
    text = (STATIC / "views" / "pipeline.js").read_text().partition("const ENDS = {")[2]
    ends = set(re.findall(r"^  (\w+): \"", text.partition("};")[0], re.MULTILINE))
    assert ends == EVERY - {"running", "paused", "retrying"}
