"""`produce cdc`: changes of a simulated database, as files or as messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary import durable
from distributary.cli.failure import usage_error
from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, number, tally
from distributary.errors import ConfigError
from distributary.simulate.cdc import (
    CALM,
    CHAOS,
    CdcFormat,
    CdcPlan,
    CdcSent,
    ChangeModel,
    DebeziumStream,
    FileRound,
    FileStream,
    MessageRound,
    SourceType,
    parse_features,
    truth_document,
    write_files,
)
from distributary.simulate.outlet import BOOTSTRAP_SERVERS


@dataclass(frozen=True, slots=True)
class CdcTarget:
    """What the command line says about where changes go."""

    to: str
    path: Path | None
    bootstrap_servers: str | None
    partitions: int | None

    def folder(self) -> Path:
        """Where files go."""
        if self.path is None:
            raise _usage("--to files needs the folder of the stream.")
        if self.partitions is not None:
            raise _usage("--partitions is for --to kafka: a folder has none.")
        return self.path

    def servers(self) -> str:
        """Where messages go."""
        if self.path is not None:
            raise _usage("PATH is for --to files: a topic has a name and a server.")
        return self.bootstrap_servers or BOOTSTRAP_SERVERS


@dataclass(frozen=True, slots=True)
class Truth:
    """Who wants to know what the tables must hold."""

    file: Path | None
    print: bool


def send_changes(
    call: Invocation,
    target: CdcTarget,
    truth: Truth,
    *,
    interval: float,
    chaos: bool,
    with_features: str | None,
    format: str | None,
    source_type: str,
    **numbers: Any,
) -> None:
    """Send the changes."""
    features = parse_features(with_features.split(",")) if with_features else frozenset()
    plan = CdcPlan(
        features=CHAOS if chaos else CALM | features,
        format=_format(target, format),
        source_type=SourceType(source_type),
        **numbers,
    )
    if plan.is_debezium:
        model, sent, about = _send_messages(call, target, plan, interval)
    else:
        model, sent, about = _send_files(call, target, plan, interval)
    _show(call, model, sent, about, truth)


def _send_files(
    call: Invocation, target: CdcTarget, plan: CdcPlan, interval: float
) -> tuple[ChangeModel, CdcSent, dict[str, Any]]:
    stream, folder = FileStream(plan), target.folder()

    def tell(round: FileRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.files), 'file')}")

    sent = write_files(stream, folder, interval=interval, on_round=tell)
    return stream.model, sent, {"kind": "files", "path": str(folder)}


def _send_messages(
    call: Invocation, target: CdcTarget, plan: CdcPlan, interval: float
) -> tuple[ChangeModel, CdcSent, dict[str, Any]]:
    # not at the top: files need no client of Kafka
    from distributary.simulate.cdc.topics import TopicsOutlet, send_messages

    servers = target.servers()
    outlet = TopicsOutlet(servers, partitions=target.partitions)
    stream = DebeziumStream(plan)

    def tell(round: MessageRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.messages), 'message')}")

    sent = send_messages(stream, outlet, interval=interval, on_round=tell)
    about = {"kind": "kafka", "bootstrap_servers": servers, "topics": sorted(outlet.made)}
    return stream.model, sent, about | {"acknowledged": outlet.acknowledged}


def _show(
    call: Invocation, model: ChangeModel, sent: CdcSent, about: dict[str, Any], truth: Truth
) -> None:
    known = truth_document(model) if truth.print or truth.file else {}
    if truth.file is not None:
        truth.file.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(truth.file, (json.dumps(known, indent=1) + "\n").encode())
    data = {"to": about} | sent.as_dict() | ({"truth": known} if truth.print else {})
    if truth.print:
        call.out.show(data, lambda paper: paper.lines(json.dumps(known, indent=1)))
    else:
        call.out.show(data, lambda paper: _draw(paper, sent, about))


def _draw(paper: Paper, sent: CdcSent, about: dict[str, Any]) -> None:
    messages = about["kind"] == "kafka"
    where = about["bootstrap_servers"] if messages else about["path"]
    paper.line(f"sent {counted(sent.events, 'event')} to {where}: {number(sent.distinct)} distinct")
    tables = counted(len(sent.per_table), "table")
    read, changed = number(sent.backfilled), number(sent.changes)
    paper.line(f"  {tables}, {read} rows backfilled, {changed} changes")
    paper.line(f"  by type: {tally(sent.by_change_type)}")
    if messages:
        acknowledged = number(about["acknowledged"])
        paper.line(f"  {number(sent.tombstones)} tombstones, {acknowledged} acknowledged messages")
    else:
        late, noise = number(sent.late_files), number(sent.noise_files)
        paper.line(f"  {counted(sent.files, 'file')}, {late} of them late; {noise} without events")
    if sent.duplicates:
        paper.line(f"  {number(sent.duplicates)} came again, byte by byte")
    paper.line(f"  rows in the end: {tally(sent.rows)}")


def _format(target: CdcTarget, format: str | None) -> CdcFormat:
    usual = CdcFormat.DEBEZIUM if target.to == "kafka" else CdcFormat.AVRO
    chosen = CdcFormat(format) if format else usual
    if (chosen is CdcFormat.DEBEZIUM) != (target.to == "kafka"):
        raise _usage("--format debezium goes with --to kafka, the other formats with --to files.")
    return chosen


def _usage(message: str) -> ConfigError:
    return usage_error(message, command="distributary produce cdc")
