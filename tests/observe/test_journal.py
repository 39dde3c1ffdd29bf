"""Every line of the log says when, how bad, which pipeline, batch and table, and no secret."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.observe.events import BatchStarted, Failed
from distributary.observe.journal import Journal, keeping, line_of
from distributary.observe.log_format import LogFormat, LogLine, read_json, spell
from tests.observe.test_events import EVERY_EVENT

AT = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
KEYS = ["time", "level", "pipeline", "batch", "table", "event", "message"]


def journal(form: LogFormat = LogFormat.JSON, **more: bool) -> tuple[Journal, io.StringIO]:
    stream = io.StringIO()
    return Journal(stream, form, **more), stream


def test_text_is_one_line_for_people() -> None:
    line = LogLine(
        message="two\nlines \x1b[31m", event="note", pipeline="games", batch=3, table="t", at=AT
    )
    assert spell(line, LogFormat.TEXT) == (
        r"2026-11-15T12:00:00.123Z INFO    games batch=3 table=t note: two\nlines \x1b[31m"
    )


def test_json_has_the_same_keys_in_every_line() -> None:
    for event in EVERY_EVENT:
        document = json.loads(spell(line_of(event), LogFormat.JSON))
        assert list(document)[: len(KEYS)] == KEYS
        assert document["pipeline"] == "p" and document["message"]


@given(st.text(), st.text(), st.none() | st.text(), st.none() | st.integers())
def test_json_lines_can_be_read_back(
    message: str, event: str, table: str | None, batch: int | None
) -> None:
    at = AT.replace(microsecond=5000)
    line = LogLine(message=message, event=event, table=table, batch=batch, more={"k": [1]}, at=at)
    text = spell(line, LogFormat.JSON)
    assert "\n" not in text and read_json(text) == line


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[1]", '{"message": 1}', "Traceback (most ...", "3"]
)
def test_other_lines_are_not_ours(text: str) -> None:
    assert read_json(text) is None


@pytest.mark.parametrize("form", list(LogFormat))
def test_secrets_are_hidden_wherever_they_are(form: LogFormat) -> None:
    log, stream = journal(form)
    log.mask = lambda text: text.replace("hunter2", "***")
    error = SourceUnavailableError("no hunter2", where="hunter2", evidence="hunter2")
    log(Failed(pipeline="p", error=error))
    log.say("hunter2", key="hunter2")
    with keeping(log):
        logging.getLogger("anybody").warning("%s", "hunter2")
    assert len(stream.getvalue().splitlines()) == 3
    assert "hunter2" not in stream.getvalue()


def test_log_records_are_filed_under_the_batch_that_is_under_way() -> None:
    log, stream = journal()
    log.pipeline = "games"
    with keeping(log):
        logging.getLogger("distributary.x").info("before")
        log.follow(BatchStarted(pipeline="games", batch=7))
        logging.getLogger("distributary.x").warning("staged %s", "f", extra={"table": "t"})
        logging.getLogger("other").info("too quiet for us")
        try:
            raise ValueError("reason")
        except ValueError:
            logging.getLogger("other").exception("failed")
        log.follow(EVERY_EVENT[4])
        log.say("after")
    logging.getLogger("distributary.x").warning("nobody keeps it")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(x["level"], x["batch"], x["table"], x["message"]) for x in lines] == [
        ("INFO", None, None, "before"),
        ("WARNING", 7, "t", "staged f"),
        ("ERROR", 7, None, "failed: ValueError: reason"),
        ("INFO", None, None, "after"),
    ]
    assert {x["pipeline"] for x in lines} == {"games"}


def test_steps_are_told_on_request_and_little_when_quiet() -> None:
    (normal, said), (loud, more), (quiet, little) = (
        journal(),
        journal(steps=True),
        journal(quiet=True),
    )
    for event in EVERY_EVENT:
        for each in (normal, loud, quiet):
            each(event)
    lengths = [len(stream.getvalue().splitlines()) for stream in (said, more, little)]
    assert lengths[0] == lengths[1] - 1
    assert {json.loads(x)["level"] for x in little.getvalue().splitlines()} == {"ERROR"}


def test_a_reader_that_has_gone_hurts_nobody() -> None:
    log, stream = journal()
    stream.close()
    log.say("anybody there?")


def test_a_batch_with_dead_letters_is_a_warning() -> None:
    settled = replace(EVERY_EVENT[4], counts=Counts(8, 7, 1))
    assert (line_of(settled).level, line_of(EVERY_EVENT[4]).level) == ("WARNING", "INFO")
