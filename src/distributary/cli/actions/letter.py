"""`dlq show`: one dead letter, whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributary.cli.actions.dlq import letters_in
from distributary.cli.lakes import Lake, find_lake, pipeline_of
from distributary.cli.output import Paper, Words, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import clock, counted, cut
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.hexdump import hexdump
from distributary.observe.letter_tables import find_letter
from distributary.observe.trust import DECODING
from distributary.run.insight import Insight, look_inside

_LABEL = 10


def show_letter(call: Invocation, id: str, *, lake: str | None, file: Path | None) -> None:
    """The record, why it is here, and as much of it as can be read."""
    found = find_lake(call, lake, file)
    letter = find_letter(letters_in(found), id, lake=found.path)
    insight = _look(call, found, letter)
    data = {**letter, "schema": insight.schema, "payload_start": insight.payload_start}
    data |= {"failing_byte": insight.mark, "decoded": insight.text}
    call.out.show(data, lambda paper: _draw(paper, letter, insight, found))


def _look(call: Invocation, lake: Lake, letter: Mapping[str, Any]) -> Insight:
    try:
        pipeline = pipeline_of(call, lake, name=letter["pipeline"], needs=DECODING)
        return look_inside(pipeline, letter)
    except DistributaryError as error:
        next_step = f"; {error.next_step}" if error.code is ErrorCode.FILE_NOT_TRUSTED else ""
        call.out.warn(f"the record is shown without its schema: {error.what}{next_step}")
        return look_inside(None, letter)


def _draw(paper: Paper, letter: Mapping[str, Any], insight: Insight, lake: Lake) -> None:
    paper.line(
        "dead letter ",
        styled(letter["id"], "bold"),
        "  ",
        styled(letter["error_code"], "bold red"),
        f"  {letter['status']}",
    )
    at = letter["timestamp"]
    _row(
        paper,
        "record",
        f"{letter['topic']}/{letter['partition']}/{letter['offset']}"
        + (f", written {clock(at)}" if at else ""),
    )
    _row(paper, "pipeline", f"{letter['pipeline']}, batch {letter['batch']}")
    _row(paper, "type", cut(letter["type"] or "unknown", 200))
    _row(paper, "schema", insight.schema)
    _row(paper, "failed in", f"step {letter['stage']}")
    _row(paper, "words", letter["error_message"] or "")
    attempts = counted(letter["attempts"] or 0, "attempt")
    _row(paper, "seen", f"first {clock(letter['first_seen'])}, last {clock(letter['last_seen'])}")
    _row(paper, "tried", attempts)
    _row(paper, "note", letter["note"] or "")
    _draw_bytes(paper, letter, insight)
    if letter["status"] == "open":
        command = f"distributary dlq replay --id {letter['id']} --dry-run{lake.flag}"
        paper.line(styled(f"  {command}", "dim"))


def _draw_bytes(paper: Paper, letter: Mapping[str, Any], insight: Insight) -> None:
    _row(paper, "key", _short(letter["key"]))
    for header in letter["headers"] or ():
        _row(paper, "header", f"{header['key']}: {_short(header['value'])}")
    value = letter["value"]
    if value is None:
        _row(paper, "value", "null")
        return
    start = insight.payload_start
    inside = f", its payload begins at byte {start}" if start else ""
    _row(paper, "value", f"{counted(len(value), 'byte')}{inside}")
    for line in hexdump(value, mark=insight.mark, label=insight.label):
        paper.line("    ", styled(line, "red") if "^^" in line[:60] else line)
    if insight.text:
        _row(paper, "decoded", "as far as it can be read")
        paper.lines(insight.text, indent="    ")


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.hex()
    return f"{cut(text, 80)} ({counted(len(data), 'byte')})"


def _row(paper: Paper, label: str, text: Words) -> None:
    if text:
        paper.line(styled(f"  {label:{_LABEL}}", "dim"), text)
