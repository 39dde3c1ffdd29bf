"""Actions: our own commands in processes of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from distributary.cli.command_line import application
from distributary.web.jobs import JobAction, Wish
from tests.waiting import eventually
from tests.web.conftest import Running, Start

PROGRAM: Any = typer.main.get_command(application())
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def post(page: Running, body: dict[str, Any]) -> httpx2.Response:
    with page.client() as client:
        proof = {"x-csrf-token": client.get("/api/session").json()["csrf"]}
        return client.post("/api/jobs", json=body, headers=proof)


def ended(page: Running, id: str) -> dict[str, Any]:
    def is_over() -> bool:
        job = page.dashboard.jobs.get(id)
        return job is not None and job.state != "running"

    eventually(is_over, seconds=120)
    job: dict[str, Any] = page.get(f"/api/jobs/{id}")["job"]
    return job


@pytest.fixture
def page(own: Path, start: Start) -> Running:
    return start(own)


@given(TEXT, TEXT, TEXT, TEXT, st.sampled_from(JobAction), st.booleans())
def test_no_value_becomes_an_option(
    reason: str, kind: str, note: str, table: str, action: JobAction, dry_run: bool
) -> None:
    wish = Wish(action, pipeline="--yes", reason=reason, type=kind, note=note, table=table)
    words = wish.command(lake="-v", file=None, dry_run=dry_run)
    command = PROGRAM
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    parsed = command.make_context("x", list(words), resilient_parsing=True).params
    assert parsed["lake"] == "-v" and parsed["pipeline"] == "--yes"
    assert parsed["dry_run"] is dry_run
    if action is JobAction.RESUME:
        assert parsed["table"] == table
    elif action not in (JobAction.PAUSE, JobAction.CONTINUE):
        assert (parsed["reason"] or "", parsed["type"] or "") == (reason, kind)
        assert parsed["yes"] is not dry_run
    if action in (JobAction.DISCARD, JobAction.PAUSE):
        assert parsed["note"] == note


@pytest.mark.parametrize(
    "body",
    [
        {"action": "reset", "pipeline": "games"},
        {"action": ["discard"], "pipeline": "games"},
        {"action": {}, "pipeline": "games"},
        {"action": "discard", "pipeline": "games", "reason": "NULL_VALUE"},
        {"action": "replay", "pipeline": "games", "reason": ["x"]},
        {"action": "replay", "pipeline": "games", "id": "a\0b"},
        {"action": "replay", "pipeline": "games", "type": "x" * 501},
        {"action": "resume", "table": "silver_go", "source_was": "gone"},
        {"action": "resume", "table": "silver_go", "source_was": "replaced --yes"},
        {},
    ],
)
def test_nonsense_starts_nothing(page_of_busy: Running, body: dict[str, Any]) -> None:
    answer = post(page_of_busy, body | {"dry_run": True})
    assert answer.status_code == 400
    assert page_of_busy.dashboard.jobs.every() == []


def test_only_what_is_there(page_of_busy: Running) -> None:
    assert post(page_of_busy, {"action": "replay", "pipeline": "x"}).status_code == 404
    assert post(page_of_busy, {"action": "resume", "table": "../x"}).status_code == 404
    assert page_of_busy.dashboard.jobs.every() == []


def test_first_a_trial_then_the_deed(page: Running) -> None:
    wish = {"action": "discard", "pipeline": "games", "reason": "NULL_VALUE", "note": "--yes"}
    at_once = post(page, wish)
    assert (at_once.status_code, at_once.json()["error"]["code"]) == (409, "CONFIRMATION_NEEDED")
    trial = post(page, wish | {"dry_run": True}).json()["job"]
    busy = post(page, wish | {"dry_run": True})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "ACTION_RUNNING")
    tried = ended(page, trial["id"])
    assert (tried["state"], tried["result"]["selected"]) == ("done", 1)
    assert (tried["id"], tried["wish"]["reason"]) == (trial["id"], "NULL_VALUE")
    assert page.get("/api/dead-letters")["counts"]["open"] == 3
    # the trial was of something else
    other = post(page, wish | {"reason": "UNKNOWN_SCHEMA_ID", "after": trial["id"]})
    assert other.status_code == 409
    done = ended(page, post(page, wish | {"after": trial["id"]}).json()["job"]["id"])
    assert (done["state"], done["result"]["discarded"]) == ("done", 1)
    assert page.get("/api/dead-letters")["counts"] == {"open": 2, "replayed": 0, "discarded": 1}
    # a permission is used up
    assert post(page, wish | {"after": trial["id"]}).status_code == 409
    letter = page.get("/api/dead-letters?status=discarded")["letters"][0]
    assert letter["note"] == "--yes"


def test_an_answer_about_a_source_becomes_part_of_the_command() -> None:
    wish = Wish(JobAction.RESUME, pipeline="shop", table="orders", source_was="replaced")
    words = wish.command(lake="lake", file=None, dry_run=False)
    assert "--source-was=replaced" in words and words[-2:] == ["--", "orders"]
    plain = Wish(JobAction.RESUME, pipeline="shop", table="orders")
    assert not any(
        "source-was" in word for word in plain.command(lake="l", file=None, dry_run=True)
    )
    # the trial of one answer is no permission for the other
    assert wish != Wish(JobAction.RESUME, pipeline="shop", table="orders", source_was="repeated")


def test_a_command_that_fails_says_why(page: Running) -> None:
    wish = {"action": "discard", "pipeline": "games", "id": "ffff", "note": "x"}
    job = ended(page, post(page, wish | {"dry_run": True}).json()["job"]["id"])
    assert (job["state"], job["result"]["error"]["code"]) == ("failed", "NOT_FOUND")
    assert post(page, wish | {"after": job["id"]}).status_code == 409


def test_the_end_of_the_page_is_the_end_of_its_jobs(page: Running) -> None:
    wish = {"action": "discard", "pipeline": "games", "reason": "NULL_VALUE", "note": "x"}
    post(page, wish | {"dry_run": True})
    began = time.monotonic()
    page.dashboard.jobs.close()
    eventually(lambda: page.dashboard.jobs.every()[0].state != "running", seconds=30)
    assert time.monotonic() - began < 60
