"""Before a run: does every table still hold what was settled for it?

A table that somebody removed, or put back from an older copy, would go on with the next batch as if
nothing had happened, and the records in between would be in no table. So a run refuses, by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from distributary.config.pipeline import PipelineConfig
from distributary.errors import TableBehindError
from distributary.model.table import Role
from distributary.observe.ledger import Ledger
from distributary.observe.measured import DERIVED
from distributary.observe.recording import Accepted
from distributary.observe.rows import LastCommit
from distributary.publish.marks import Expected, Held, lacking
from distributary.run.tables import table_folder

_SHOWN = 10
_THREADS = 32
"""For an object store, where each question is a request."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A table that has less than was settled."""

    commit: LastCommit
    held: Held
    batches: tuple[int, ...]
    """Those that it lacks, as far as the ledger still lists them one by one."""

    def describe(self) -> str:
        """`silver_go (there is no table; batches 0 to 7)`."""
        known = self.held
        lane = "" if self.commit.lane == "stream" else f" of lane {self.commit.lane}"
        has = "there is no table" if not known.exists else f"it ends with {_batch(known.mark)}"
        if known.exists and self.commit.role in DERIVED:
            has = f"it is at version {known.version} instead of {self.commit.version}"
        return f"{self.commit.table} ({has}; settled: {spelled(self.batches)}{lane})"


def refuse_behind(config: PipelineConfig, ledger: Ledger, life: str) -> None:
    """Raise TableBehindError if a table of this pipeline lacks what was settled in this life."""
    found = behind(config, ledger, life)
    if not found:
        return
    names = list(dict.fromkeys(one.commit.table for one in found))
    more = f", and {len(names) - _SHOWN:,} more tables" if len(names) > _SHOWN else ""
    told = [one for one in found if one.commit.table in names[:_SHOWN]]
    raise TableBehindError(
        f"{len(names):,} of the pipeline's tables lack batches that were settled",
        where=config.lake.address,
        evidence="; ".join(one.describe() for one in told) + more,
        next_step=_next_step(config, told),
        tables=",".join(names[:_SHOWN]),
    )


def behind(
    config: PipelineConfig, ledger: Ledger, life: str, table: str | None = None
) -> list[Behind]:
    """The tables (or one of them) that lack something, by name."""
    commits = [
        commit
        for commit in ledger.last_commits(config.name)
        if commit.life == life
        and commit.required is not None
        and table in (None, commit.table)
        and _is_written(config, commit)
    ]

    def ask(commit: LastCommit) -> Held | None:
        return lacking(_expected(config, commit), config.lake.options)

    if config.lake.is_local:
        # threads would cost more than the few system calls for each
        answers = list(map(ask, commits))
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            answers = list(pool.map(ask, commits))
    found = [
        Behind(commit, held, _missing(ledger, commit, held))
        for commit, held in zip(commits, answers, strict=True)
        if held is not None
    ]
    return sorted(found, key=lambda one: (one.commit.table, one.commit.lane))


def accept_rebuilt(config: PipelineConfig, ledger: Ledger, table: str, version: int) -> None:
    """A table that lacked batches and was made anew from its log has them, without their marks."""
    lives = {c.life for c in ledger.last_commits(config.name) if c.table == table}
    for life in lives:
        found = behind(config, ledger, life, table)
        ledger.accept([Accepted(b.commit, b.commit.batch or 0, 0, version) for b in found])


def spelled(batches: Iterable[int]) -> str:
    """`batch 7`, `batches 3 to 7`, `batches 3, 5 and 9 to 12`."""
    runs: list[list[int]] = []
    for number in sorted(set(batches)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    if len(parts) > _SHOWN:
        parts = [*parts[: _SHOWN - 1], f"{len(parts) - _SHOWN + 1} more"]
    text = ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + "".join(parts[-1:])
    return f"batch {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"batches {text}"


def _expected(config: PipelineConfig, commit: LastCommit) -> Expected:
    return Expected(
        path=table_folder(config, commit.table),
        app_id=commit.app_id,
        batch=commit.batch or 0,
        version=commit.version or 0,
        marked=commit.role not in DERIVED,
    )


def _is_written(config: PipelineConfig, commit: LastCommit) -> bool:
    """Whether the pipeline file still names the table; of types nobody knows before they come."""
    tables = config.tables
    unified = tables.unified.name if tables.unified else None
    fixed = {Role.BRONZE: tables.bronze, Role.UNIFIED: unified}
    fixed[Role.DEAD_LETTERS] = tables.dead_letters
    return commit.role not in fixed or fixed[Role(commit.role)] == commit.table


def _missing(ledger: Ledger, commit: LastCommit, held: Held) -> tuple[int, ...]:
    marked = commit.role not in DERIVED
    rows = ledger.table_batches(commit).to_pylist()
    floor = -1 if commit.accepted is None else commit.accepted
    if marked and held.exists and held.mark is not None:
        floor = max(floor, held.mark)
    return tuple(
        row["batch"]
        for row in rows
        if row["version"] is not None
        and row["outcome"] not in ("parked", "accepted")
        and row["batch"] > floor
        and (marked or not held.exists or row["version"] > held.version)
    ) or ((commit.batch,) if commit.batch is not None else ())


def _next_step(config: PipelineConfig, found: Iterable[Behind]) -> str:
    names = {one.commit.table: one.commit.role for one in found}
    first = next(iter(names))
    parts = ["put the newest copy of the tables back"]
    merged = [name for name, role in names.items() if role == Role.MERGED]
    if merged and config.cdc is not None and config.cdc.log:
        parts.append(f"`distributary rebuild {merged[0]}` makes it anew from its log")
    parts.append(
        f"if it was meant to be, `distributary reset FILE --table {first}` takes it as it is: what "
        "it lacks is then in no table"
    )
    return "; ".join(parts)


def _batch(mark: int | None) -> str:
    return "no batch of this pipeline" if mark is None else f"batch {mark}"
