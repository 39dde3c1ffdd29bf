"""`iceberg sync`: Iceberg mirrors of Delta tables, brought up to date or made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import find_lake, find_table, load_file
from distributary.cli.command.output import Paper, counted, duration, styled
from distributary.cli.command.verb import (
    FIX,
    Invocation,
    argument,
    complete_tables,
    group,
    option,
    verb,
)
from distributary.errors import ConfigError, DistributaryError

if TYPE_CHECKING:
    from distributary.engine.mirrors import Outcome

app = group("iceberg", "Iceberg mirrors of Delta tables.", panel=FIX)

_SHOWN = 50


@verb(app, "iceberg sync distributary-demo/games.yaml")
def sync(
    call: Invocation,
    file: Annotated[Path, argument("The pipeline file.", metavar="FILE", show_default=False)],
    tables: Annotated[
        list[str] | None,
        argument(
            "Tables to synchronise; by default all.",
            metavar="TABLE",
            autocompletion=complete_tables,
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, option("--again", "Make the mirrors again from the whole Delta log.")
    ] = False,
) -> int:
    """Bring the Iceberg mirrors of a pipeline's tables up to date, beside a run or without one."""
    import time

    loaded = load_file(call, file, needs={"lake"})
    config = loaded.config
    if config.lake.iceberg is None:
        raise ConfigError(
            "the tables of this pipeline have no Iceberg mirrors",
            where=f"{file}: lake.iceberg",
            next_step="set lake.iceberg, such as iceberg: {tables: ['silver_*']}",
        )
    from distributary.engine.mirrors import MirrorRounds, mirrored_tables
    from distributary.iceberg.mirror import Synced

    lake = find_lake(call, None, file)
    ledger = lake.ledger()
    chosen = mirrored_tables(config, ledger)
    if tables:
        known = ledger.tables(config.name, schema_ids=False)
        names = {find_table(known, name).table for name in tables}
        chosen = [table for table in chosen if table.name in names]
        if missing := sorted(names - {table.name for table in chosen}):
            raise ConfigError(
                f"{missing[0]} has no mirror",
                where="lake.iceberg.tables",
                evidence=", ".join(config.lake.iceberg.tables),
                next_step="add the table there",
            )
    began = time.perf_counter()
    rounds = MirrorRounds(config, loaded.mask)
    try:
        outcomes = rounds.round(chosen, again=again)
        if not tables:
            rounds.note(outcomes)
    finally:
        rounds.close()
    data = {
        "lake": lake.path,
        "tables": [_facts(name, outcome) for name, outcome in outcomes.items()],
        "seconds": round(time.perf_counter() - began, 3),
    }
    changed = sum(isinstance(one, Synced) and one.changed for one in outcomes.values())
    errors = {n: one for n, one in outcomes.items() if isinstance(one, DistributaryError)}

    def draw(paper: Paper) -> None:
        remade = {n: o.again for n, o in outcomes.items() if isinstance(o, Synced) and o.again}
        for name, why in list(remade.items())[:_SHOWN]:
            paper.line(styled(f"{name} was made again: {why}", "yellow"))
        for name, error in list(errors.items())[:_SHOWN]:
            text = f"  {name}: {loaded.mask(error.what)}; {loaded.mask(error.evidence)}"
            paper.line(styled(str(error.code), "bold red"), text)
            paper.line(f"    {loaded.mask(error.next_step)}")
        failed = f", {len(errors):,} failed" if errors else ""
        took = duration(time.perf_counter() - began)
        paper.line(f"{counted(len(outcomes), 'mirror')}, {changed:,} changed{failed}; {took}")

    call.out.show(data, draw)
    return 1 if errors else 0


def _facts(name: str, outcome: Outcome) -> dict[str, object]:
    if outcome is None:
        return {"table": name, "version": None}
    if isinstance(outcome, DistributaryError):
        return {"table": name, "error": outcome.as_dict()}
    return {
        "table": name,
        "version": outcome.version,
        "snapshot": outcome.snapshot,
        "changed": outcome.changed,
        "commits": outcome.commits,
        "made_again": outcome.again,
    }
