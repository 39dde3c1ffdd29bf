"""`messages`: single messages of the source, decoded, by offset or time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import find_lake, pipeline_of
from distributary.cli.command.output import Paper, clock, counted, number, styled
from distributary.cli.command.verb import (
    LOOK,
    FileOption,
    Invocation,
    LakeOption,
    PipelineName,
    argument,
    option,
    single,
    verb,
)
from distributary.observe.log_format import cut

if TYPE_CHECKING:
    from distributary.model.record import Partition
    from distributary.operations.messages import Message, MessagePage

app = single(LOOK)

_MOST = 20
_LABEL = 10
_MOST_PARTITIONS = 12


@verb(
    app,
    "messages --file kafka-games.yaml",
    "messages wrapper/0 --offset 42 --file kafka-games.yaml",
    "messages wrapper/0 --at 2026-11-19T09:00:00Z --limit 3 --file kafka-games.yaml",
)
def messages(
    call: Invocation,
    where: Annotated[
        str | None,
        argument("TOPIC/PARTITION; the first one of the source by default.", metavar="WHERE"),
    ] = None,
    offset: Annotated[
        int | None, option("--offset", "The first message by its offset.", metavar="N", min=0)
    ] = None,
    at: Annotated[
        str | None,
        option("--at", "The first message by its time, in ISO 8601, UTC by default."),
    ] = None,
    limit: Annotated[
        int, option("--limit", "The largest number of messages.", min=1, max=100)
    ] = _MOST,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
) -> int:
    """Show messages of a topic, decoded: the newest ones, or from an offset or a time on.

    Nothing is committed at the broker, and the pipeline's progress does not change. Where a message
    went in the lake: distributary trace TOPIC/PARTITION/OFFSET
    """
    from distributary.cli.upkeep.repair import moment_of
    from distributary.observe.cards import DECODING
    from distributary.operations.messages import browse
    from distributary.source.source_entry import Browsing

    if offset is not None and at is not None:
        raise call.usage("--offset and --at exclude each other: both name the first message.")
    start = moment_of(call, at) if offset is None else offset
    wanted = Browsing(None if where is None else _partition(call, where), start, limit)
    found = find_lake(call, lake, file, empty=file is not None)
    page = browse(pipeline_of(call, found, name=pipeline, needs=DECODING), wanted)
    call.out.show(page.as_dict(), lambda paper: _draw(paper, page))
    return 0


def _partition(call: Invocation, where: str) -> Partition:
    topic, _, partition = where.rpartition("/")
    if not topic or not (partition.isascii() and partition.isdecimal()):
        raise call.usage(f"{where!r} is not TOPIC/PARTITION, such as wrapper/0.")
    return topic, int(partition)


def _draw(paper: Paper, page: MessagePage) -> None:
    place = page.source.partition
    if place is None:
        paper.line("the source has no partition yet")
        return
    oldest, end = page.source.bounds[place]
    paper.line(
        styled(f"{place[0]}/{place[1]}", "bold"),
        f"  offsets {number(oldest)} to {number(end)}, from {number(page.source.start)} on",
    )
    for message in page.messages:
        _draw_message(paper, message)
    if not page.messages:
        paper.line("there is no message at or after this position")
    others = [
        f"{topic}/{number}" for topic, number in page.source.bounds if (topic, number) != place
    ]
    if others:
        more = len(others) - _MOST_PARTITIONS
        rest = f" and {counted(more, 'more partition')}" if more > 0 else ""
        paper.line(styled(f"other partitions: {', '.join(others[:_MOST_PARTITIONS])}{rest}", "dim"))


def _draw_message(paper: Paper, message: Message) -> None:
    plain = message.as_dict()
    written = "" if message.timestamp is None else f"  written {clock(message.timestamp)}"
    paper.line(
        styled(number(message.offset), "bold"),
        f"  {cut(message.type or 'type unknown', 200)}{written}",
    )
    if message.error:
        paper.row("error", styled(cut(message.error, 300), "red"), width=_LABEL)
    paper.row("schema", message.insight.schema, width=_LABEL)
    if plain["key"] is not None:
        paper.row("key", cut(plain["key"]["shown"], 200), width=_LABEL)
    for header in plain["headers"]:
        value = header["value"]
        text = "null" if value is None else value["shown"]
        paper.row("header", cut(f"{header['key']}: {text}", 200), width=_LABEL)
    if message.value is None:
        paper.row("value", "null", width=_LABEL)
    elif message.insight.text:
        paper.lines(message.insight.text, indent="    ")
    else:
        for line in plain["hex"]:
            paper.line("    ", line)
