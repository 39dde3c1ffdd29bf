"""`dlq`: list, show, replay and discard dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributary.cli.command.lakes import FoundLake, find_lake, pipeline_of
from distributary.cli.command.output import (
    Paper,
    clock,
    confirmed,
    counted,
    number,
    since,
    styled,
    tally,
)
from distributary.cli.command.verb import (
    FIX,
    LOOK,
    DryRun,
    FileOption,
    Invocation,
    LakeOption,
    PipelineName,
    Yes,
    argument,
    complete_letters,
    complete_reasons,
    group,
    option,
    verb,
)
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.log_format import cut, listed

if TYPE_CHECKING:
    import pyarrow as pa

    from distributary.observe.deadletters import DeadLetters, Reason
    from distributary.operations.insight import Insight
    from distributary.operations.replay import ReplayResult


app = group("dlq", "Dead letters: list, show, replay, discard.", panel=LOOK)


Shown = Literal["open", "replayed", "discarded", "all"]
ReasonOption = Annotated[
    str | None,
    option("--reason", "Only this error code.", metavar="CODE", autocompletion=complete_reasons),
]
TypeOption = Annotated[str | None, option("--type", "Only records of this type.", metavar="TYPE")]

_LABEL = 10
_LONGEST = 40
"""Of a type's name: records may claim any, and one must not push the others off the screen."""


@verb(app, "dlq list --lake distributary-demo", name="list", panel=LOOK)
def list_letters(
    call: Invocation,
    status: Annotated[Shown, option("--status", "Status of the dead letters.")] = "open",
    reason: ReasonOption = None,
    type: TypeOption = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
) -> None:
    """List the reasons of dead letters with counts, times and an example."""
    found = find_lake(call, lake)
    wanted = None if status == "all" else status
    reasons = [
        (name, _only(each, type))
        for name, letters in _letters_in(found, pipeline).items()
        for each in letters.reasons(status=wanted, pipeline=name)
        if reason in (None, each.code) and (type is None or type in each.types)
    ]
    reasons.sort(key=lambda pair: (-pair[1].count, pair[1].code))
    data = {
        "lake": found.path,
        "status": status,
        "total": sum(each.count for _, each in reasons),
        "reasons": [{"pipeline": name} | asdict(each) for name, each in reasons],
    }
    call.out.show(data, lambda paper: _draw_reasons(paper, [r for _, r in reasons], status, found))


def _only(reason: Reason, type: str | None) -> Reason:
    if type is None:
        return reason
    return replace(reason, count=reason.types[type], types={type: reason.types[type]})


def _draw_reasons(paper: Paper, reasons: Sequence[Reason], status: Shown, lake: FoundLake) -> None:
    if not reasons:
        paper.line("no dead letters" if status == "all" else f"no {status} dead letters")
        return
    paper.table(
        ("REASON", "COUNT>", "FIRST SEEN", "LAST SEEN", "EXAMPLE", "TYPES"),
        (
            (
                styled(r.code, "bold"),
                number(r.count),
                since(r.first_seen),
                since(r.last_seen),
                r.example,
                listed((cut(name or "unknown", _LONGEST) for name in r.types), most=3),
            )
            for r in reasons
        ),
        indent=0,
    )
    paper.line(counted(sum(r.count for r in reasons), "dead letter"))
    paper.line(styled(f"distributary dlq show {reasons[0].example}{lake.flag}", "dim"))


@verb(app, "dlq show wrapper/0/2821 --lake distributary-demo", panel=LOOK)
def show(
    call: Invocation,
    id: Annotated[
        str,
        argument(
            "The id, its first characters, or TOPIC/PARTITION/OFFSET.",
            metavar="ID",
            autocompletion=complete_letters,
        ),
    ],
    lake: LakeOption = None,
    file: FileOption = None,
) -> None:
    """Show a dead letter: the record, its bytes, and the fields that can be decoded."""
    from distributary.observe.cards import DECODING
    from distributary.observe.deadletters import find_letter
    from distributary.operations.insight import look_inside

    found = find_lake(call, lake, file)
    letter = find_letter(_letters_in(found), id, lake=found.path)
    try:
        mine = pipeline_of(call, found, name=letter["pipeline"], needs=DECODING)
        insight = look_inside(mine, letter)
    except DistributaryError as error:
        next_step = f"; {error.next_step}" if error.code is ErrorCode.FILE_NOT_TRUSTED else ""
        call.out.warn(f"the record is shown without its schema: {error.what}{next_step}")
        insight = look_inside(None, letter)
    data = {**letter, "schema": insight.schema, "payload_start": insight.payload_start}
    data |= {"failing_byte": insight.mark, "decoded": insight.text}
    call.out.show(data, lambda paper: _draw_letter(paper, letter, insight, found))


def _draw_letter(
    paper: Paper, letter: Mapping[str, Any], insight: Insight, lake: FoundLake
) -> None:
    from distributary.observe.deadletters import hexdump

    paper.line(
        "dead letter ",
        styled(letter["id"], "bold"),
        "  ",
        styled(letter["error_code"], "bold red"),
        f"  {letter['status']}",
    )
    at, value = letter["timestamp"], letter["value"]
    written = f", written {clock(at)}" if at else ""
    rows = [
        ("record", f"{letter['topic']}/{letter['partition']}/{letter['offset']}{written}"),
        ("pipeline", f"{letter['pipeline']}, batch {letter['batch']}"),
        ("type", cut(letter["type"] or "unknown", 200)),
        ("schema", insight.schema),
        ("failed in", f"step {letter['stage']}"),
        ("error", letter["error_message"]),
        ("seen", f"first {clock(letter['first_seen'])}, last {clock(letter['last_seen'])}"),
        ("tried", counted(letter["attempts"] or 0, "attempt")),
        ("note", letter["note"]),
        ("key", _one_line(letter["key"])),
        *(("header", f"{h['key']}: {_one_line(h['value'])}") for h in letter["headers"] or ()),
    ]
    start = insight.payload_start
    inside = f", its payload begins at byte {start}" if start else ""
    rows.append(("value", "null" if value is None else f"{counted(len(value), 'byte')}{inside}"))
    for label, text in rows:
        paper.row(label, text or "", width=_LABEL)
    if value is not None:
        for line in hexdump(value, mark=insight.mark, label=insight.label):
            paper.line("    ", styled(line, "red") if "^^" in line[:60] else line)
        if insight.text:
            paper.row("decoded", "as far as it can be decoded", width=_LABEL)
            paper.lines(insight.text, indent="    ")
    if letter["status"] == "open":
        command = f"distributary dlq replay --id {letter['id']} --dry-run{lake.flag}"
        paper.line(styled(f"  {command}", "dim"))


def _one_line(data: bytes | None) -> str:
    from distributary.observe.deadletters import short_bytes

    short = short_bytes(data)
    if short is None:
        return "null"
    return f"{cut(short['shown'], 80)} ({counted(short['bytes'], 'byte')})"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters are meant; everything that is given must hold."""

    reason: ReasonOption = None
    type: TypeOption = None
    since: Annotated[
        str | None,
        option(
            "--since",
            "First seen at this time or later: 2026-01-31T12:00Z, or 2h for 2 hours ago.",
            metavar="TIME",
        ),
    ] = None
    until: Annotated[
        str | None, option("--until", "First seen before this time.", metavar="TIME")
    ] = None
    offset: Annotated[
        str | None,
        option("--offset", "TOPIC/PARTITION/OFFSET, or a range: topic/0/10-20.", metavar="PLACE"),
    ] = None
    id: Annotated[
        str | None, option("--id", "Only the dead letter whose id begins with this.", metavar="ID")
    ] = None

    @property
    def is_everything(self) -> bool:
        """Return whether the selection has no condition."""
        return self == Selection()

    def criteria(self, call: Invocation) -> dict[str, Any]:
        """Return the arguments for `DeadLetters.select`."""
        place = _stretch(call, self.offset) if self.offset else (None, None, None)
        moments = {"since": _moment(call, self.since), "until": _moment(call, self.until)}
        topic, partition, offsets = place
        named = {"reason": self.reason, "type": self.type, "id": self.id}
        return named | moments | {"topic": topic, "partition": partition, "offsets": offsets}


def _select(
    source: DeadLetters,
    wanted: Mapping[str, Any],
    pipeline: str,
    columns: tuple[str, ...] | None = None,
) -> pa.Table:
    """Return the selected open dead letters of one pipeline."""
    # the option may have only the first digits of an id
    id = source.get(wanted["id"])["id"] if wanted["id"] is not None else None
    return source.select(**{**wanted, "id": id}, pipeline=pipeline, columns=columns)


def _moment(call: Invocation, text: str | None) -> datetime | None:
    from distributary.config.base import parse_duration, parse_moment

    if text is None:
        return None
    # the text is an age or a time
    with suppress(ValueError):
        return datetime.now(UTC) - parse_duration(text.removesuffix("ago").strip())
    with suppress(ValueError):
        return parse_moment(text)
    raise call.usage(f"{text!r} is neither a time such as 2026-01-31T12:00Z nor an age such as 2h.")


def _stretch(call: Invocation, text: str) -> tuple[str, int, int | tuple[int, int]]:
    parts = text.rsplit("/", 2)
    first, dash, last = parts[-1].partition("-")
    numbers = [*parts[1:2], first, *([last] if dash else [])]
    if len(parts) != 3 or not parts[0] or not all(number.isdecimal() for number in numbers):
        raise call.usage(
            f"{text!r} is not TOPIC/PARTITION/OFFSET, nor a range such as topic/0/10-20."
        )
    return parts[0], int(parts[1]), (int(first), int(last)) if dash else int(first)


def _letters_in(lake: FoundLake, pipeline: str | None = None) -> dict[str, DeadLetters]:
    """Return the dead letters of each selected pipeline."""
    from distributary.observe.deadletters import letter_tables

    name = pipeline or lake.pipeline
    return letter_tables(lake.path, pipeline=name)


def _has_none(
    lake: FoundLake, wanted: Mapping[str, Any], pipeline: str | None, *, dry_run: bool
) -> bool:
    """Return whether no pipeline that is meant has such a letter, nor a replay to finish."""
    from distributary.observe.cards import registrations
    from distributary.observe.deadletters import unfinished
    from distributary.store.base import at

    name = pipeline or lake.pipeline
    cards = [card for card in registrations(lake.path) if name in (None, card.name)]
    if not cards or wanted["id"] is not None:
        return False
    try:
        if not dry_run and any(unfinished(at(card.checkpoint)) for card in cards):
            return False
    except OSError:
        # only the settings of the pipeline give access to this checkpoint
        return False
    tables = _letters_in(lake, pipeline)
    return not any(_select(t, wanted, each, ("id",)).num_rows for each, t in tables.items())


@verb(app, "dlq replay --reason UNKNOWN_SCHEMA_ID --dry-run --lake distributary-demo", panel=FIX)
def replay(
    call: Invocation,
    chosen: Selection,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Send dead letters through the pipeline once more.

    Each record reaches its table exactly once. Nothing is written to the topic.
    """
    wanted, found = chosen.criteria(call), find_lake(call, lake, file)
    if _has_none(found, wanted, pipeline, dry_run=dry_run):
        return _show_replay(call, [], dry_run=dry_run)
    # imported after the count, because the import takes longer than the count
    from distributary.cli.command.live import session_for
    from distributary.engine.progress.removal import dead_letters_of
    from distributary.observe.deadletters import unfinished
    from distributary.operations.replay import LANE, finish, try_replay
    from distributary.operations.replay import replay as send_again

    mine = pipeline_of(call, found, name=pipeline)
    letters, name = dead_letters_of(mine), mine.config.name
    count = _select(letters, wanted, name, ("id",)).num_rows
    if not count and (dry_run or not unfinished(mine.checkpoint)):
        return _show_replay(call, [], dry_run=dry_run)
    meant = counted(count, "dead letter")
    ask = chosen.is_everything and count > 0 and not dry_run
    if ask and not confirmed(call, f"Replay all {meant}?", yes=yes, evidence=meant):
        return 1
    # checked before Spark starts
    mine.ready(LANE)
    chosen_letters = _select(letters, wanted, name)
    more = bool(unfinished(mine.checkpoint))
    with (
        session_for(call, mine, chosen_letters, more=more) as spark,
        mine.open(spark, lane=LANE) as context,
    ):
        if dry_run:
            tried = try_replay(context, chosen_letters)
            return _show_replay(call, [tried], dry_run=True)
        # an interrupted replay is finished first, because its letters are no longer open then
        begun = finish(context, letters)
        still_open = _select(letters, wanted, name) if begun else chosen_letters
        done = send_again(context, letters, still_open)
    return _show_replay(call, [*begun, done], dry_run=False)


def _show_replay(call: Invocation, parts: Sequence[ReplayResult], *, dry_run: bool) -> int:
    """Print the results of replays; return 1 if some records failed again."""
    failed, tables = Counter[str](), Counter[str]()
    for part in parts:
        failed.update(part.failed_again)
        tables.update(part.tables)
    selected, replayed = sum(p.selected for p in parts), sum(p.replayed for p in parts)

    def draw(paper: Paper) -> None:
        if not selected:
            paper.line("0 to replay")
            return
        into = f", into {tally(tables)}" if tables and replayed else ""
        paper.line(f"{replayed:,} {'would decode' if dry_run else 'replayed'}{into}")
        if failed:
            again = "would fail again" if dry_run else "failed again"
            paper.line(f"{failed.total():,} {again}: {tally(failed)}")

    counts = {"failed_again": dict(failed), "tables": dict(tables)}
    data = {"dry_run": dry_run, "selected": selected, "replayed": replayed, **counts}
    call.out.show(data, draw)
    return 1 if failed and not dry_run else 0


@verb(
    app,
    "dlq discard --reason NULL_VALUE --note 'tests' --dry-run --lake distributary-demo",
    panel=FIX,
)
def discard(
    call: Invocation,
    note: Annotated[str, option("--note", "Why the dead letters are discarded.")],
    chosen: Selection,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Mark dead letters as discarded, with a note. The records are kept."""
    wanted = chosen.criteria(call)
    tables = _letters_in(find_lake(call, lake), pipeline)
    ids = {
        name: _select(letters, wanted, name, ("id",))["id"].to_pylist()
        for name, letters in tables.items()
    }
    count = sum(map(len, ids.values()))
    letters = counted(count, "dead letter")
    ask = not dry_run and count > 0 and chosen.is_everything
    if ask and not confirmed(call, f"Discard all {letters}?", yes=yes, evidence=letters):
        return 1
    discarded = 0
    if not dry_run:
        discarded = sum(tables[name].discard(some, note=note) for name, some in ids.items() if some)
    data = {"dry_run": dry_run, "selected": count, "discarded": discarded, "note": note}
    text = f"{letters} would be discarded" if dry_run else f"{discarded:,} discarded"
    call.out.show(data, lambda paper: paper.line(text))
    return 0
