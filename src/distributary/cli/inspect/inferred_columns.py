"""`schema forget` and `schema retype`: what was inferred for records without a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import (
    open_pipeline,
)
from distributary.cli.command.output import (
    Paper,
    counted,
    spelled,
)
from distributary.cli.command.verb import (
    DryRun,
    File,
    Invocation,
    argument,
    complete_tables,
)
from distributary.errors import (
    ConfigError,
    ErrorCode,
    missing,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from distributary.engine.pipeline import Pipeline
    from distributary.operations.replay import ReplayResult


def forget(
    call: Invocation,
    name: Annotated[
        str, argument("Topic of the records, or their table in the database.", metavar="NAME")
    ],
    file: File,
    dry_run: DryRun = False,
) -> None:
    """Forget the columns inferred for records without a schema; the next batch infers them again.

    Use it for JSON without a registry, when the first records did not look like the others. The
    table keeps its columns and rows. Afterwards, `dlq replay` sends the dead letters again. The
    pipeline must not run meanwhile.
    """
    from distributary.engine.progress.claim import refuse_owned
    from distributary.engine.seams import make_inferred

    pipeline = open_pipeline(call, file)
    inferred = make_inferred(pipeline.config)
    claim = _claim(name, () if inferred is None else inferred.claims(), where=str(file))
    data = {"pipeline": pipeline.config.name, "schema": spelled(claim), "dry_run": dry_run}
    if inferred is not None and not dry_run:
        refuse_owned(pipeline.checkpoint)
        inferred.forget(claim)
    words = f"{'would forget' if dry_run else 'forgot'} the inferred schema of {spelled(claim)}"
    call.out.show(data | {"forgotten": not dry_run}, lambda paper: paper.line(words))


def retype(
    call: Invocation,
    name: Annotated[
        str,
        argument(
            "Name of the table, or of the type of its records.",
            metavar="NAME",
            autocompletion=complete_tables,
        ),
    ],
    column: Annotated[
        str, argument("Name of the field, or a path such as address.zip.", metavar="COLUMN")
    ],
    kind: Annotated[
        str,
        argument(
            "boolean, integer, number, string, json (any value as text), object or array.",
            metavar="KIND",
        ),
    ],
    file: File,
    dry_run: DryRun = False,
) -> int:
    """Correct the kind of a column of JSON without a schema, and replay its dead letters.

    From then on, values of this kind are written to the column, or to a side column if the table's
    column has another type. The table's dead letters with PAYLOAD_MISMATCH are sent again. The
    pipeline must not run meanwhile. Exit code 1 if some fail again.
    """
    from distributary.decode.json.kinds import KINDS, kind_name, retyped
    from distributary.engine.planning.strategies import strategy_of
    from distributary.engine.progress.claim import refuse_owned
    from distributary.engine.progress.removal import dead_letters_of
    from distributary.engine.seams import make_inferred

    pipeline = open_pipeline(call, file)
    retypes = strategy_of(pipeline.config).retypes
    inferred = make_inferred(pipeline.config) if retypes else None
    claims = () if inferred is None else inferred.claims()
    if name not in claims:
        types = {t.table: t.type for t in pipeline.ledger().tables(schema_ids=False)}
        name = types.get(name) or name
    claim = _claim(name, claims, where=str(file))
    if kind not in KINDS:
        raise missing("this kind does not exist", kind, KINDS, where="KIND")
    document = (inferred.document(claim) if inferred is not None else None) or {}
    path = [column] if column in document.get("properties", {}) else column.split(".")
    new = retyped(document, path, kind)
    if inferred is None or new is None:
        known = sorted(document.get("properties", {}))
        raise missing("the records have no such field", column, known, where=spelled(claim))
    before = document
    for step in path:
        before = before["properties"][step]
    letters = dead_letters_of(pipeline).select(
        reason=ErrorCode.PAYLOAD_MISMATCH, type=claim, pipeline=pipeline.config.name, columns=["id"]
    )
    data = {
        "pipeline": pipeline.config.name,
        "schema": spelled(claim),
        "column": column,
        "before": kind_name(before),
        "after": kind,
        "dry_run": dry_run,
        "selected": letters.num_rows,
    }
    words = (
        f"{spelled(claim)}: {'would make' if dry_run else 'made'} {column} {kind}, "
        f"it was {data['before']}; {counted(letters.num_rows, 'dead letter')} to replay"
    )
    if dry_run:
        call.out.show(data, lambda paper: paper.line(words))
        return 0
    refuse_owned(pipeline.checkpoint)
    # a second call after a crash finds the same document, and the letters that are still open
    inferred.add({claim: new})
    inferred.settle_doubts(claim, column)
    done = _replay_mismatches(call, pipeline, claim) if letters.num_rows else None
    failed = {} if done is None else done.failed_again
    data |= {"replayed": 0 if done is None else done.replayed, "failed_again": failed}

    def draw(paper: Paper) -> None:
        paper.line(words)
        if done is not None:
            again = f", {sum(failed.values()):,} failed again" if failed else ""
            paper.line(f"{done.replayed:,} replayed{again}")

    call.out.show(data, draw)
    return 1 if failed else 0


def _replay_mismatches(call: Invocation, pipeline: Pipeline, claim: str) -> ReplayResult:
    """Send the dead letters of a type again that did not match its schema."""
    from distributary.cli.command.live import session_for
    from distributary.engine.progress.removal import dead_letters_of
    from distributary.observe.deadletters import unfinished
    from distributary.operations.replay import LANE, finish, replay

    letters = dead_letters_of(pipeline)
    pipeline.ready(LANE)

    def chosen() -> pa.Table:
        name = pipeline.config.name
        return letters.select(reason=ErrorCode.PAYLOAD_MISMATCH, type=claim, pipeline=name)

    mismatches, more = chosen(), bool(unfinished(pipeline.checkpoint))
    with (
        session_for(call, pipeline, mismatches, more=more) as spark,
        pipeline.open(spark, lane=LANE) as context,
    ):
        begun = finish(context, letters)
        return replay(context, letters, chosen() if begun else mismatches)


def _claim(name: str, claims: Sequence[str], *, where: str) -> str:
    """Return the claim with this name, or whose name ends with it."""
    exact = [each for each in claims if name in (each, spelled(each))]
    meant = exact or [each for each in claims if spelled(each).endswith(f".{name}")]
    if len(meant) == 1:
        return meant[0]
    among = sorted(map(spelled, meant or claims))
    raise ConfigError(
        f"several inferred schemas are called {name}"
        if meant
        else f"there is no inferred schema of {name}",
        code=ErrorCode.NOT_FOUND,
        where=where,
        evidence=f"there are: {', '.join(among[:10])}" if among else "nothing was inferred",
        next_step="use the complete name" if among else "change the schema in its registry",
    )
