"""`verify`: tables against the ledger, their own logs, and the databases that they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import (
    FoundLake,
    find_lake,
    find_table,
    loaded_of,
    pipeline_of,
)
from distributary.cli.command.output import (
    NORMAL,
    Paper,
    Words,
    counted,
    duration,
    number,
    styled,
)
from distributary.cli.command.verb import (
    LOOK,
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
from distributary.cli.upkeep.repair import microseconds, moment_of
from distributary.cli.upkeep.source_comparison import (
    Healing,
    HealOption,
    SampleOption,
    SourceOption,
    WaitOption,
    compare_tables,
    share_of,
)
from distributary.errors import ConfigError, DamagedFileError, DistributaryError
from distributary.observe.log_format import cut, plain

if TYPE_CHECKING:
    from distributary.engine.pipeline import Pipeline
    from distributary.observe.erasures import ErasureCheck
    from distributary.observe.ledger.ledger_rows import TableSummary
    from distributary.observe.verify.gaps import LaneCheck
    from distributary.observe.verify.row_counts import TableCheck
    from distributary.operations.repair.verify_table import Checked


app = single(LOOK)

_SHOWN = 15
_MOST_DIFFERENCES = 10
_LONGEST = 40
_NOTES = 10
"""The largest number of lines of progress if the output is no terminal."""
_THREADS = 16
"""Tables that are looked at side by side: most of the time is spent waiting for storage."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result for one table."""

    check: TableCheck
    merged: Checked | None = None
    """Of a table of current rows: the comparison with its log."""

    @property
    def agrees(self) -> bool:
        """Return whether no check has a finding."""
        return self.check.agrees and (self.merged is None or self.merged.verified.agrees)


@verb(app, "verify --all --lake distributary-demo", "verify --all --deep --lake distributary-demo")
def verify(
    call: Invocation,
    tables: Annotated[
        list[str] | None,
        argument("Names of tables.", metavar="TABLE", autocompletion=complete_tables),
    ] = None,
    everything: Annotated[bool, option("--all", "Every table of the lake.")] = False,
    deep: Annotated[
        bool,
        option(
            "--deep",
            "Read every file too, and check the origin of each row: no record twice, none missing.",
        ),
    ] = False,
    as_of: Annotated[
        str | None,
        option(
            "--as-of",
            "A cut (41, games:41): every table at its version of it. A time of the source "
            "(2026-11-15T12:00:00Z): merged tables by the changes up to it.",
            metavar="CUT",
        ),
    ] = None,
    source: SourceOption = None,
    sample: SampleOption = None,
    wait: WaitOption = "60s",
    heal: HealOption = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
) -> int:
    """Prove that tables hold what was written to them.

    The batches, rows and files of each table are compared with the ledger and with the table's log;
    with --deep, every record is. A merged table of change data is computed again from its log and
    compared value by value. With --source, it is compared with its source database, while the
    pipeline may run; --heal copies the rows that differ into the log and the table. Exit code 1 if
    a table differs. Nothing is changed without --heal.
    """
    from distributary.model.table import Role
    from distributary.observe.cuts import names_batch
    from distributary.observe.erasures import check_erasures

    if everything == bool(tables):
        raise call.usage("name tables or use --all, not both.")
    if deep and as_of is not None:
        raise call.usage("--deep compares the current rows: leave --as-of out.")
    share, patience = share_of(call, sample), call.seconds("--wait", wait)
    if source and (deep or as_of is not None):
        raise call.usage("--source compares the current rows: leave --deep and --as-of out.")
    if share is not None and not source:
        raise call.usage("--sample needs --source.")
    if heal and (not source or share is not None):
        raise call.usage("--heal needs --source, and excludes --sample.")
    found = find_lake(call, lake, file)
    known = found.ledger().tables(pipeline or found.pipeline, schema_ids=False)
    chosen = [find_table(known, name) for name in tables] if tables else list(known)
    if as_of is not None and names_batch(as_of):
        return _verify_cut(call, found, chosen, as_of, pipeline=pipeline, everything=everything)
    moment = moment_of(call, as_of)
    if source:
        return compare_tables(
            call,
            found,
            chosen,
            source,
            everything=everything,
            sample=share,
            wait=patience,
            healing=Healing(dry_run=dry_run, yes=yes) if heal else None,
        )
    if as_of is not None:
        other = next((table for table in chosen if table.role != Role.MERGED), None)
        if other is not None and not everything:
            raise ConfigError(
                f"{other.table} is not a merged table, so --as-of does not apply",
                where="--as-of",
                evidence=f"its role is {other.role}",
                next_step="leave --as-of out",
            )
        chosen = [table for table in chosen if table.role == Role.MERGED]
    done = _results(
        call, found, chosen, everything=everything, deep=deep, as_of_us=microseconds(moment)
    )
    lanes = _lanes(call, found, chosen, deep=deep) if as_of is None else []
    erasures = check_erasures(found.path, deep=deep) if everything and as_of is None else None
    agree = all(one.agrees for one in done) and all(lane.agrees for lane in lanes)
    agree = agree and (erasures is None or erasures.agrees)
    data = {
        "lake": found.path,
        "as_of": moment,
        "deep": deep,
        "agree": agree,
        "tables": [_document(one) for one in done],
        "lanes": [{**plain(lane), "agrees": lane.agrees} for lane in lanes],
        "erasures": None if erasures is None else {**plain(erasures), "agrees": erasures.agrees},
    }

    def draw(paper: Paper) -> None:
        _draw_erasures(paper, erasures)
        _draw_results(paper, done, lanes, found)

    call.out.show(data, draw)
    return 0 if agree else 1


def _verify_cut(
    call: Invocation,
    lake: FoundLake,
    chosen: Sequence[TableSummary],
    as_of: str,
    *,
    pipeline: str | None,
    everything: bool,
) -> int:
    """Check tables at their versions of a cut; merged tables against their logs of the same cut."""
    from concurrent.futures import ThreadPoolExecutor

    from distributary.changes.rebuild import Versions
    from distributary.model.table import Role
    from distributary.observe.cuts import Cuts
    from distributary.observe.verify.cut_check import check_cut
    from distributary.operations.repair.verify_table import verify_table_at

    cuts = Cuts(lake.path)
    point = cuts.find(as_of, pipeline=pipeline)
    cut_now = cuts.cut(point)
    tables = {table.table.casefold(): table for table in cut_now.tables}
    owners = {known.table.casefold(): known for known in chosen}
    if not everything:
        for known in chosen:
            cuts.table(point, known.table)
    wanted = [table for name, table in tables.items() if name in owners]
    with ThreadPoolExecutor(_THREADS) as pool:
        checks = list(pool.map(lambda table: check_cut(cuts, point, table), wanted))
    done: list[VerifyResult] = []
    pipelines: dict[str, Pipeline] = {}
    for table, check in zip(wanted, checks, strict=True):
        known = owners[table.table.casefold()]
        log = tables.get(f"{table.table}_log".casefold())
        usable = check.agrees and table.behind is None and known.role == Role.MERGED
        if not usable or table.version is None or log is None or log.version is None:
            done.append(VerifyResult(check))
            continue
        if known.pipeline not in pipelines:
            pipelines[known.pipeline] = pipeline_of(
                call, lake, name=known.pipeline, needs=("lake",)
            )
        versions = Versions(table.version, log.version)
        compared = verify_table_at(pipelines[known.pipeline], known, versions)
        done.append(VerifyResult(check.with_more(compared=["values, by its log"]), compared))
    agree = all(one.agrees for one in done)
    data = {
        "lake": lake.path,
        "as_of": point.at,
        "cut": point.describe(),
        "deep": False,
        "agree": agree,
        "tables": [_document(one) for one in done],
        "lanes": [],
        "erasures": None,
    }
    call.out.show(data, lambda paper: _draw_results(paper, done, [], lake))
    return 0 if agree else 1


def _draw_erasures(paper: Paper, check: ErasureCheck | None) -> None:
    if check is None:
        return
    for finding in check.findings:
        paper.line(styled(finding.what, "bold red"), f"  {finding.evidence}")
        paper.line(f"      {finding.next_step}")
    if check.erasures:
        how = (
            "nothing came back"
            if check.rows_compared and check.agrees
            else "--deep looks for rows that came back"
        )
        paper.line(f"{counted(check.erasures, 'erasure')} with a certificate: {how}")
    if check.waiting:
        what = counted(check.waiting, "batch", "batches")
        paper.line(f"{what} with records of an erased value: bronze has them until `maintain`")


def _lanes(
    call: Invocation, lake: FoundLake, chosen: Sequence[TableSummary], *, deep: bool
) -> list[LaneCheck]:
    """Look for gaps in the ledger's batches of the pipelines that write to these tables."""
    from distributary.model import layout
    from distributary.observe.cards import registrations
    from distributary.observe.verify.gaps import check_lanes

    pipelines = sorted({table.pipeline for table in chosen})
    cards = {card.name: card.checkpoint for card in registrations(lake.path)}
    parking = {name: layout.parking(lake.path, name, cards.get(name, "")) for name in pipelines}
    # before the ledger is read: a batch is settled after it is in the ledger
    settled = {
        (name, life, lane): batch
        for name in pipelines
        for life, lane, batch in _settled(call, lake, name, cards.get(name, ""))
    }
    found = check_lanes(
        lake.ledger(), pipelines, every_range=deep, parking=parking, settled=settled
    )
    return [_without_accepted_losses(call, lake, one) for one in found]


def _settled(
    call: Invocation, lake: FoundLake, pipeline: str, folder: str
) -> list[tuple[str, str, int]]:
    """Read the newest settled batch of each lane from the checkpoint: life, lane, batch.

    A checkpoint outside of the lake counts only if the pipeline's file still names this lake: a
    copy of a lake has the card of the original. One that cannot be read stops the next run.
    """
    from distributary.engine.progress.checkpoint import Checkpoint
    from distributary.store.base import at

    if not folder:
        return []
    try:
        if not folder.startswith(lake.path.rstrip("/") + "/"):
            loaded_of(call, replace(lake, file=None), name=pipeline, needs=("lake",))
        checkpoint = Checkpoint.find(at(folder), pipeline=pipeline)
        batches = checkpoint.settled() if checkpoint else {}
    except DistributaryError:
        return []
    return [(checkpoint.life, lane, batch) for lane, batch in batches.items() if checkpoint]


def _without_accepted_losses(call: Invocation, lake: FoundLake, one: LaneCheck) -> LaneCheck:
    """Leave out stretches that the source had lost, where its settings accept that."""
    left = tuple(finding for finding in one.findings if finding.kind != "range_gap")
    if len(left) == len(one.findings):
        return one
    try:
        source = pipeline_of(call, lake, name=one.pipeline, needs=("lake",)).config.source
    except DistributaryError:
        return one
    accepts = not getattr(source, "fail_on_data_loss", True)
    accepts = accepts or getattr(source, "on_replaced", "stop") == "read"
    return replace(one, findings=left) if accepts else one


def _results(
    call: Invocation,
    lake: FoundLake,
    chosen: Sequence[TableSummary],
    *,
    everything: bool,
    deep: bool,
    as_of_us: int | None,
) -> list[VerifyResult]:
    """Check each table once, however many pipelines write to it."""
    from concurrent.futures import ThreadPoolExecutor

    from distributary.model.table import Role
    from distributary.observe.cards import registrations
    from distributary.observe.verify.checksums import check_files
    from distributary.observe.verify.coordinates import coordinates
    from distributary.observe.verify.row_counts import check_table, unreadable, written_tables

    ledger = lake.ledger()
    cards = registrations(lake.path)
    every = written_tables(
        lake.path,
        ledger.last_commits(),
        parked=Counter((row.pipeline, row.table) for row in ledger.parked()),
        files={card.name: card.file for card in cards},
    )
    summaries = {(table.pipeline, table.table): table for table in chosen}
    wanted = [t for t in every if any((c.pipeline, c.table) in summaries for c in t.commits)]
    with ThreadPoolExecutor(_THREADS) as pool:
        checks = list(pool.map(check_table, wanted))
    if deep:
        with coordinates(ledger, every) as place, _progress(call, len(wanted)) as tell:
            for at, table in enumerate(wanted):
                tell(at, table.table)
                checks[at] = place.check(table, check_files(table, checks[at]))
    pipelines: dict[str, Pipeline] = {}

    def compare(known: TableSummary, check: TableCheck) -> VerifyResult:
        # imported here, because it imports Spark, which other tables do not need
        from distributary.operations.repair.verify_table import verify_table

        name = known.pipeline
        if name not in pipelines:
            pipelines[name] = pipeline_of(call, lake, name=name, needs=("lake",))
        if everything and pipelines[name].config.hides_logs:
            note = "its values were not compared: there is no log, because cdc.log is false"
            return VerifyResult(check.with_more(notes=[note]))
        compared = verify_table(pipelines[name], known, as_of_us=as_of_us)
        return VerifyResult(check.with_more(compared=["values, by its log"]), compared)

    def group_again(known: TableSummary, check: TableCheck) -> TableCheck:
        name = known.pipeline
        if name not in pipelines:
            pipelines[name] = pipeline_of(call, lake, name=name, needs=("lake",))
        return _grouped(pipelines[name], known, check)

    done, merged = [], sum(table.role == Role.MERGED for table in wanted)
    with _progress(call, merged) as tell:
        at = 0
        for table, check in zip(wanted, checks, strict=True):
            if table.role == Role.AGGREGATE:
                owners = (summaries.get((c.pipeline, c.table)) for c in table.commits)
                done.append(VerifyResult(group_again(next(filter(None, owners)), check)))
                continue
            if table.role != Role.MERGED or any(f.kind == "damaged" for f in check.findings):
                done.append(VerifyResult(check))
                continue
            tell(at, table.table)
            at += 1
            owners = (summaries.get((c.pipeline, c.table)) for c in table.commits)
            try:
                done.append(compare(next(filter(None, owners)), check))
            except DamagedFileError as error:
                # an unreadable table must not hide the results of all others
                done.append(VerifyResult(check.with_more(findings=[unreadable(table, error)])))
    return done


def _grouped(pipeline: Pipeline, known: TableSummary, check: TableCheck) -> TableCheck:
    """Add the comparison of an aggregate table with the groups of the table that it follows."""
    from distributary.observe.verify.row_counts import TableFinding
    from distributary.operations.repair.verify_table import verify_aggregate

    if check.version is None or any(f.kind in ("damaged", "unreadable") for f in check.findings):
        return check
    try:
        found = verify_aggregate(pipeline, known)
    except DamagedFileError as error:
        what = "a data file is damaged, of it or of the table that it follows"
        step = error.next_step
        return check.with_more(findings=[TableFinding("damaged", what, error.where, step)])
    except DistributaryError as error:
        return check.with_more(notes=[f"its values were not compared: {error.evidence}"])
    if found is None:
        return check
    step = f"`distributary rebuild {known.table}` computes it again"
    findings = []
    if found.wrong:
        what = f"groups that differ from its source table: {found.wrong:,}"
        findings.append(TableFinding("values", what, "; ".join(found.examples), step))
    if found.behind and not known.parked_batches:
        what = "its source table has changed since: the next batch brings it up to date"
        at = f"it agrees with version {found.version} of {found.newest}"
        findings.append(TableFinding("behind", what, at, step))
    return check.with_more(compared=["values, by its table"], findings=findings)


@contextmanager
def _progress(call: Invocation, total: int) -> Iterator[Callable[[int, str], None]]:
    from rich.live import Live

    def text(at: int, table: str) -> str:
        return f"verifying {at + 1:,} of {total:,}: {table}"

    if call.out.margin.fancy and call.out.verbosity == NORMAL:
        with Live(console=call.out.margin.console, transient=True) as live:
            yield lambda at, table: live.update(styled(text(at, table), "dim"))
        return

    def note(at: int, table: str) -> None:
        if total > _NOTES and at % -(-total // _NOTES) == 0:
            call.out.note(text(at, table))

    yield note


def _document(one: VerifyResult) -> dict[str, Any]:
    check = replace(one.check, seconds=round(one.check.seconds, 3))
    data: dict[str, Any] = {**plain(check), "agrees": one.agrees}
    if one.merged is None:
        return data
    found = one.merged.verified
    return data | {
        "log": one.merged.log,
        "rows": found.found,
        "rows_by_log": found.expected,
        "checksum": found.found_checksum,
        "checksum_by_log": found.expected_checksum,
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "differences": plain(found.differences[:_MOST_DIFFERENCES]),
        "parked_batches": one.merged.parked_batches,
        "unfinished_batch": one.merged.unfinished,
        "seconds": round(found.seconds, 3),
    }


def _draw_results(
    paper: Paper, done: Sequence[VerifyResult], lanes: Sequence[LaneCheck], lake: FoundLake
) -> None:
    """Print tables with findings first, then the others, then a summary line."""
    if not done:
        paper.line("there is no table to verify")
        return
    order = sorted(done, key=lambda one: (one.agrees, one.check.table))
    merged = [one.merged for one in order if one.merged is not None]
    others = [one.check for one in order if one.merged is None]
    if others:
        paper.table(
            ("TABLE", "KIND", "ROWS>", "BY THE LEDGER>", "FILES>", "COMPARED", "RESULT", "TIME>"),
            map(_check_cells, others[:_SHOWN]),
            indent=0,
        )
        paper.more(len(others) - _SHOWN)
    if merged:
        paper.table(
            ("TABLE", "ROWS>", "BY THE LOG>", "CHECKSUM", "BY THE LOG>", "RESULT", "TIME>"),
            map(_merged_cells, merged[:_SHOWN]),
            indent=0,
        )
        paper.more(len(merged) - _SHOWN)
    for one in order[:_SHOWN]:
        _draw_findings(paper, one.check)
        if one.merged is not None and not one.merged.verified.agrees:
            _draw_differences(paper, one.merged, lake)
    gaps = [finding for lane in lanes for finding in lane.findings]
    for finding in gaps[:_SHOWN]:
        paper.line("")
        paper.line(styled("ledger", "bold"), ": ", styled(finding.what, "bold red"))
        paper.line(f"  seen: {finding.evidence}")
        paper.line(f"  next: {finding.next_step}")
    _draw_sum(paper, done, gaps=len(gaps))


def _check_cells(one: TableCheck) -> list[Words]:
    kinds = ", ".join(finding.kind.replace("_", " ") for finding in one.findings)
    return [
        one.table,
        one.role.replace("_", " "),
        number(one.rows),
        number(one.rows_by_ledger),
        number(one.files),
        ", ".join(one.compared) or "-",
        styled("agree", "green") if one.agrees else styled(kinds, "bold red"),
        duration(one.seconds),
    ]


def _merged_cells(one: Checked) -> list[Words]:
    found = one.verified
    result = styled("agree", "green")
    if not found.agrees:
        parts = {"missing": found.missing, "extra": found.extra, "different": found.different}
        text = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
        result = styled(text, "bold red")
    return [
        found.table,
        number(found.found),
        number(found.expected),
        found.found_checksum,
        found.expected_checksum,
        result,
        duration(found.seconds),
    ]


def _draw_findings(paper: Paper, one: TableCheck) -> None:
    for finding in one.findings:
        paper.line("")
        paper.line(styled(one.table, "bold"), ": ", styled(finding.what, "bold red"))
        paper.line(f"  at: {one.path}")
        paper.line(f"  seen: {finding.evidence}")
        paper.line(f"  next: {finding.next_step}")
    for note in one.notes:
        paper.line(styled(f"{one.table}: {note}", "dim"))


def _draw_differences(paper: Paper, one: Checked, lake: FoundLake) -> None:
    found = one.verified
    paper.line("")
    paper.line(styled(found.table, "bold"), f": what differs from {one.log}")
    paper.table(
        ("KEY", "COLUMN", "EXPECTED", "FOUND"),
        (
            (
                cut(each.key, _LONGEST),
                each.column or "(the row)",
                "-" if each.expected is None else cut(each.expected, _LONGEST),
                "-" if each.found is None else cut(each.found, _LONGEST),
            )
            for each in found.differences[:_MOST_DIFFERENCES]
        ),
    )
    if one.parked_batches:
        waiting = counted(one.parked_batches, "batch", "batches")
        paper.line(f"  {waiting} wait for it: distributary resume {found.table}{lake.flag}")
    elif one.unfinished:
        paper.line("  a batch is unfinished: run the pipeline, or wait for it, and verify again")
    else:
        fixing = f"distributary rebuild {found.table}{lake.flag}"
        paper.line(f"  to build it again from its log: {fixing}")


def _draw_sum(paper: Paper, done: Sequence[VerifyResult], *, gaps: int) -> None:
    differing = sum(not one.agrees for one in done)
    merged = [one.merged.verified for one in done if one.merged is not None]
    rows = sum(one.check.rows or 0 for one in done if one.merged is None)
    rows += sum(found.expected for found in merged)
    tables = counted(len(done), "table")
    if differing:
        verb = "differs" if differing == 1 else "differ"
        paper.line(styled(f"{differing:,} of {tables} {verb}", "bold red"))
        return
    if gaps:
        paper.line(styled(f"{tables} agree with a ledger that has gaps", "bold red"))
        return
    logs = "" if not merged else " and with their logs"
    text = f"{tables}, {counted(rows, 'row')}: agree with the ledger{logs}"
    paper.line(styled(text, "bold green"))
