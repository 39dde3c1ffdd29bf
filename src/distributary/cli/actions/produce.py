"""`produce`: simulated records into a table, and their schemas into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributary.cli.failure import usage_error
from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number, tally
from distributary.registry.files import FileRegistry
from distributary.simulate import (
    DEFAULT_KINDS,
    DeltaSink,
    GamesPlan,
    PeoplePlan,
    Round,
    Sent,
    parse_kinds,
    produce_games,
    produce_people,
)

_SHARES = {"none": 0.0, "confluent": 1.0}


def send_games(
    call: Invocation,
    *,
    to: tuple[str, str],
    registry: Path,
    rate: float | None,
    framing: str,
    bad_kinds: str | None,
    **numbers: Any,
) -> None:
    """Send the games."""
    kinds = parse_kinds(bad_kinds.split(",")) if bad_kinds else DEFAULT_KINDS
    plan = GamesPlan(framed=_SHARES.get(framing, "mixed"), bad_kinds=kinds, **numbers)
    sink = DeltaSink(_table(to))
    sent = produce_games(
        plan, registry=FileRegistry(registry), sink=sink, rate=rate, on_round=_Teller(call)
    )
    _show(call, sent, to, registry)


def send_people(
    call: Invocation,
    *,
    to: tuple[str, str],
    registry: Path,
    rate: float | None,
    **numbers: Any,
) -> None:
    """Send the people."""
    sink = DeltaSink(_table(to), value_column="value", type_column=None)
    sent = produce_people(
        PeoplePlan(**numbers),
        registry=FileRegistry(registry),
        sink=sink,
        rate=rate,
        on_round=_Teller(call),
    )
    _show(call, sent, to, registry)


def _table(to: tuple[str, str]) -> Path:
    kind, path = to
    if kind != "delta":
        raise usage_error(f"--to {kind!r} is not known: use delta.", command="distributary produce")
    return Path(path)


class _Teller:
    """Says after each round how far it is."""

    def __init__(self, call: Invocation) -> None:
        self._call, self._sent = call, 0

    def __call__(self, done: Round) -> None:
        self._sent += done.sent().messages
        self._call.out.note(f"version {done.version}: {counted(self._sent, 'message')} sent")


def _show(call: Invocation, sent: Sent, to: tuple[str, str], registry: Path) -> None:
    data = {"to": {"kind": to[0], "path": to[1]}, "registry": str(registry), **sent.as_dict()}
    call.out.show(data, lambda paper: _draw(paper, sent, to[1]))


def _draw(paper: Paper, sent: Sent, path: str) -> None:
    good, bad = number(sent.good), number(sent.bad)
    paper.line(f"sent {counted(sent.messages, 'message')} to {path}: {good} good, {bad} bad")
    versions = sum(len(by_version) for by_version in sent.schema_ids.values())
    types, schemas = counted(len(sent.per_type), "type"), counted(versions, "schema version")
    paper.line(f"  {types}, {schemas}, {number(sent.framed)} with the registry's header")
    if sent.bad_by_code:
        paper.line(f"  bad ones: {tally(sent.bad_by_code)}")
    if sent.late:
        paper.line(f"  {number(sent.late)} of an old version came late")
