"""`verify --source`: merged tables against the database that they come from, and healing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import FoundLake, find_lake, find_table, pipeline_of
from distributary.cli.command.output import (
    NORMAL,
    Paper,
    confirmed,
    counted,
    duration,
    number,
    size,
    styled,
)
from distributary.cli.command.verb import (
    FIX,
    DryRun,
    FileOption,
    Invocation,
    LakeOption,
    PipelineName,
    Yes,
    argument,
    complete_tables,
    option,
    single,
    verb,
)
from distributary.errors import ConfigError
from distributary.observe.log_format import cut, plain

if TYPE_CHECKING:
    from rich.text import Text

    from distributary.changes.source.base import Database
    from distributary.changes.source.compare import Progress, SourceCheck
    from distributary.engine.context import RunContext
    from distributary.model.change import Slot
    from distributary.observe.ledger.ledger_rows import TableSummary

SourceOption = Annotated[
    str | None,
    option(
        "--source",
        "The database that the table comes from: postgresql://USER:${PASSWORD}@HOST/DATABASE, "
        "mysql:// or mariadb://; or '${URL}'. Variables of the environment are put in.",
        metavar="URL",
    ),
]
SampleOption = Annotated[
    str | None,
    option(
        "--sample",
        "With --source: compare the values of this part of the rows, and the number of all rows.",
        metavar="PERCENT",
    ),
]
WaitOption = Annotated[
    str,
    option(
        "--wait",
        "With --source: the time to wait for the stream, and for transactions to end.",
        metavar="TIME",
    ),
]
HealOption = Annotated[
    bool,
    option(
        "--heal",
        "With --source: copy the rows that differ from the database into the log and the table.",
    ),
]
_LONGEST = 40
_NOTE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Healing:
    """How rows that differ are healed."""

    dry_run: bool
    yes: bool


def share_of(call: Invocation, text: str | None) -> float | None:
    """Read the part of the rows that is compared."""
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise call.usage(f"--sample must be a percentage such as 5%, not {text!r}.")
    return share


@contextmanager
def database_at(url: str) -> Iterator[Database]:
    """Connect to a database for as long as the context lasts."""
    from distributary.changes.source.base import connect
    from distributary.config.database import parse_address, with_variables

    database = connect(parse_address(with_variables(url)))
    try:
        yield database
    finally:
        database.close()


def compare_tables(
    call: Invocation,
    lake: FoundLake,
    chosen: Sequence[TableSummary],
    url: str,
    *,
    everything: bool,
    sample: float | None,
    wait: float,
    healing: Healing | None,
) -> int:
    """Compare merged tables with a database, show what was found, and heal it if that is meant."""
    from distributary.operations.source_comparison import comparison, finish, heal, is_unfinished

    tables = [table for table in chosen if table.role == "merged" or not everything]
    if not tables:
        raise ConfigError(
            "this lake has no tables of change data",
            where="--source",
            next_step="`distributary tables` lists all tables",
        )
    checks: list[SourceCheck] = []
    healed: dict[str, int] = {}
    with database_at(url) as database, ExitStack() as runs:
        contexts: dict[str, RunContext] = {}
        for table in tables:
            mine = pipeline_of(call, lake, name=table.pipeline, needs=("lake",))
            if healing is not None and not healing.dry_run and is_unfinished(mine):
                # rows that a killed command was writing would count as differences
                contexts[mine.config.name] = _opened(call, lake, table.pipeline, runs)
                finish(contexts[mine.config.name])
            with progress_of(call) as progress:
                compared = comparison(mine, table, database, sample=sample, progress=progress)
                check, wrong, moment = compared.run(patience=wait)
            checks.append(check)
            meant = healing is not None and not healing.dry_run and wrong.count
            if not meant or healing is None:
                continue
            if check.cut_off:
                raise _too_many(check, wrong.count)
            rows = counted(wrong.count, "row")
            question = f"Read {rows} of {check.table} again from {check.source}?"
            if not confirmed(call, question, yes=healing.yes, evidence=rows):
                continue
            if mine.config.name not in contexts:
                contexts[mine.config.name] = _opened(call, lake, table.pipeline, runs)
            healed[check.table] = heal(
                contexts[mine.config.name], table, compared, wrong, moment, address=check.address
            )
        slots = database.slots()
    agree = all(check.agrees or check.table in healed for check in checks)
    data = {
        "lake": lake.path,
        "source": database.address,
        "agree": agree,
        "tables": [document(check) | {"healed": healed.get(check.table, 0)} for check in checks],
        "slots": plain(slots),
    }
    call.out.show(data, lambda paper: draw_checks(paper, checks, slots, healed, healing))
    return 0 if agree else 1


def _too_many(check: SourceCheck, count: int) -> ConfigError:
    """Return the error for more rows than one batch heals."""
    return ConfigError(
        f"too many rows of table {check.table} differ to heal them one by one",
        where=check.source,
        evidence=f"at least {count:,} rows differ as of {check.position}",
        next_step="if the stream is behind, wait until it has caught up; else `distributary "
        f"snapshot {check.table}` reads the whole table again",
    )


def _opened(call: Invocation, lake: FoundLake, name: str, runs: ExitStack) -> RunContext:
    """Open the lane of rows that are read from a database."""
    from distributary.cli.command.live import start_spark
    from distributary.operations.source_comparison import LANE

    mine = pipeline_of(call, lake, name=name)
    # checked before Spark starts
    mine.ready(LANE)
    spark = runs.enter_context(start_spark(call, mine))
    return runs.enter_context(mine.open(spark, lane=LANE))


@contextmanager
def progress_of(call: Invocation) -> Iterator[Progress]:
    """Show how far rows are read: a bar in a terminal, else a line now and then."""
    if not call.out.margin.fancy or call.out.verbosity != NORMAL:
        last = time.monotonic()

        def note(what: str, rows: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last > _NOTE_SECONDS:
                last = time.monotonic()
                of = f" of {total:,}" if total else ""
                call.out.note(f"{what}: {rows:,}{of} rows")

        yield note
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    counts = TextColumn("{task.fields[count]}", style="progress.download")
    columns = (TextColumn("{task.description}"), BarColumn(), counts)
    console = call.out.margin.console
    with Bars(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, rows: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, count="")
            # a wait counts nothing
            count = f"{rows:,} of {total:,} rows" if total else f"{rows:,} rows" if rows else ""
            bars.update(tasks[what], completed=rows, total=total, count=count)

        yield show


def document(check: SourceCheck) -> dict[str, Any]:
    """Return a check for `--json`."""
    data: dict[str, Any] = plain(check)
    data["seconds"] = round(check.seconds, 3)
    return {**data, "agrees": check.agrees}


def draw_checks(
    paper: Paper,
    checks: Sequence[SourceCheck],
    slots: Sequence[Slot],
    healed: Mapping[str, int],
    healing: Healing | None,
) -> None:
    """Draw a line for each table, what differs, and one sentence for all."""
    order = sorted(checks, key=lambda check: (check.agrees, check.table))
    paper.table(
        ("TABLE", "SOURCE", "ROWS>", "IN THE SOURCE>", "AT", "RESULT", "TIME>"),
        (
            [
                check.table,
                check.source,
                number(check.lake_rows),
                number(check.source_rows),
                check.position,
                _result(check),
                duration(check.seconds),
            ]
            for check in order
        ),
        indent=0,
    )
    for check in order:
        _draw_notes(paper, check)
        if check.differences:
            paper.line("")
            paper.line(styled(check.table, "bold"), f": what differs from {check.source}")
            paper.table(
                ("KEY", "COLUMN", "SOURCE", "LAKE"),
                (
                    (
                        cut(one.key, _LONGEST),
                        one.column or "(the row)",
                        "-" if one.source is None else cut(one.source, _LONGEST),
                        "-" if one.lake is None else cut(one.lake, _LONGEST),
                    )
                    for one in check.differences
                ),
            )
        if check.unlike_log:
            apart = counted(check.unlike_log, "row")
            paper.line(f"  {apart}: the log is right, distributary rebuild {check.table}")
    for slot in slots:
        paper.line(f"slot {slot_in_words(slot)}")
    for table, count in healed.items():
        text = f"{counted(count, 'row')} of {table} read again: run verify once more"
        paper.line(styled(text, "bold green"))
    rows = sum(check.source_rows for check in checks)
    differing = [check for check in checks if not check.agrees and check.table not in healed]
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        tables = counted(len(checks), "table")
        text = f"{len(differing):,} of {tables} {verb} from the source"
        paper.line(styled(text, "bold red"))
        if healing is None:
            paper.line("  to read these rows again: the same with --heal, --dry-run first")
        elif healing.dry_run:
            paper.line("  --heal without --dry-run reads these rows again")
    elif not healed:
        tables = f"{counted(len(checks), 'table')}, {counted(rows, 'row')}"
        paper.line(styled(f"{tables}: agree with the source", "bold green"))


def slot_in_words(slot: Slot) -> Text:
    """Return the name of a replication slot and how much log it holds back."""
    state = "" if slot.active else ", which has no reader"
    if slot.lost:
        return styled(f"{slot.name}{state}: the database has removed log that it needs", "bold red")
    return styled(f"{slot.name}{state}: holds back {size(slot.bytes)} of log", "")


def _result(check: SourceCheck) -> Any:
    if check.agrees:
        return styled("agree", "green")
    parts = {
        "missing": check.missing,
        "extra": check.extra,
        "different": check.different + check.unlike_log,
    }
    text = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
    text = f"at least {text}" if check.cut_off and text else text
    return styled(text or "another number of rows", "bold red")


def _draw_notes(paper: Paper, check: SourceCheck) -> None:
    notes = []
    if check.unclear:
        rows = counted(check.unclear, "row")
        notes.append(f"{rows} changed while the snapshot was taken, and were not compared")
    if check.cut_off:
        notes.append("too many rows differ to compare them all by value: the counts are of a part")
    if check.sample is not None:
        notes.append(f"{check.sample:.2%} of the rows were compared by value")
    if check.only_in_source:
        notes.append(f"only the source has the columns {', '.join(check.only_in_source)}")
    if check.only_in_lake:
        notes.append(f"only the lake has the columns {', '.join(check.only_in_lake)}")
    if check.not_compared:
        notes.append(f"not compared, because their types differ: {', '.join(check.not_compared)}")
    if not check.agrees and not check.passed:
        notes.append(f"the log has no change from after {check.position}: the stream may be behind")
    for note in notes:
        paper.line(styled(f"{check.table}: {note}", "dim"))


app = single(FIX)


@verb(app, "snapshot orders --source '${SHOP_URL}' --lake distributary-demo")
def snapshot(
    call: Invocation,
    table: Annotated[
        str, argument("The merged table.", metavar="TABLE", autocompletion=complete_tables)
    ],
    source: SourceOption = None,
    wait: WaitOption = "60s",
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Read a whole table of change data from its database again.

    The pipeline may run meanwhile. Each range of keys is read as of a position in the database's
    log: it replaces earlier changes, and later changes replace it. Rows that the database no longer
    has are deleted. A snapshot that was killed continues where it stopped.
    """
    from distributary.operations.source_comparison import comparison, read_again

    patience = call.seconds("--wait", wait)
    if source is None:
        raise call.usage("--source must name the database.")
    found = find_lake(call, lake, file)
    known = find_table(found.ledger().tables(pipeline or found.pipeline, schema_ids=False), table)
    mine = pipeline_of(call, found, name=known.pipeline, needs=("lake",))
    with database_at(source) as database, ExitStack() as runs:
        compared = comparison(mine, known, database)
        title = compared.source.title
        database.open(patience)
        rows = database.count(compared.source)
        read = 0
        meant = not dry_run and confirmed(
            call, f"Read all of {title} again?", yes=yes, evidence=counted(rows, "row")
        )
        if meant:
            context = _opened(call, found, known.pipeline, runs)
            with progress_of(call) as progress:
                compared = comparison(mine, known, database, progress=progress)
                read, _ = read_again(
                    context,
                    known,
                    compared,
                    database,
                    patience=patience,
                    total=rows,
                    progress=progress,
                )
    data = {"table": known.table, "source": title, "dry_run": dry_run, "rows": rows, "read": read}
    what = f"{counted(read, 'row')} of {title} read again" if meant else f"{rows:,} rows in {title}"
    call.out.show(data, lambda paper: paper.line(what))
    return 0 if meant or dry_run else 1
