"""`trace FILE`: the events and rows that a change file became."""

from __future__ import annotations

import json
import os

from distributary.cli.lakes import Lake
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted
from distributary.observe.plain import plain
from distributary.observe.trace_files import FileEvent, FileTrace, below, roots_of, trace_file

_SHOWN = 20
_COLOURS = {"insert": "green", "delete": "red", "truncate": "red"}


def trace_path(call: Invocation, lake: Lake, where: str) -> int | None:
    """What a file or folder became; 1 if nothing is known of it, None if no files were read."""
    roots = roots_of(lake.path, storage_options=lake.options)
    if not roots:
        return None
    path = below(roots, where)
    if path == where.rstrip("/"):
        path = _local(roots, where)
    found = trace_file(lake.path, path, storage_options=lake.options)
    data = {**plain(found), "events": found.events}
    call.out.show(data, lambda paper: _draw(paper, found))
    return 0 if found.tables or found.dead_letters else 1


def _local(roots: tuple[str, ...], where: str) -> str:
    """A path from the working directory, if that leads below a root."""
    whole = below(roots, os.path.abspath(where))
    return where.rstrip("/") if whole.startswith("/") else whole


def _draw(paper: Paper, found: FileTrace) -> None:
    letters = len(found.dead_letters)
    name = found.path or "all files"
    if not found.tables and not letters:
        paper.line(styled(f"no event and no dead letter comes from {name}", "yellow"))
        return
    told = f"{counted(found.events, 'event')}, {counted(letters, 'dead letter')}"
    paper.line(styled(name, "bold"), f": {told}")
    for table in found.tables:
        more = "" if table.complete else " and more"
        rows = f", rows of {table.table}" if table.table else ""
        paper.line(f"  {counted(len(table.events), 'event')}{more} in {table.log}{rows}")
        for event in table.events[:_SHOWN]:
            _draw_event(paper, event)
        if len(table.events) > _SHOWN:
            paper.line(f"    ... {len(table.events) - _SHOWN} more: --json has them")
    for letter in found.dead_letters[:_SHOWN]:
        place = f"{letter['topic']}/{letter['partition']}/{letter['offset']}"
        paper.line(f"  dead letter {letter['id']}: {letter['error_code']}, {letter['status']}")
        paper.line(styled(f"    {place}: {letter['error_message']}", "dim"))


def _draw_event(paper: Paper, event: FileEvent) -> None:
    key = ", ".join(f"{name}={_text(value)}" for name, value in plain(event.key).items())
    state = {True: "the row now", False: "not the row now", None: ""}[event.current]
    paper.line(
        styled("  > " if event.current else "    ", "green"),
        f"{event.source.offset:>6}  ",
        styled(f"{event.op:8}", _COLOURS.get(event.op, "cyan")),
        f"  {key}",
        styled(f"  {state}", "dim"),
    )
    paper.line(styled(f"            {event.source}", "dim"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
