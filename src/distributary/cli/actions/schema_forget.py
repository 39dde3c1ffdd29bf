"""`schema forget`: what records without a schema look like is found out anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distributary.cli.lakes import open_pipeline
from distributary.cli.verb import Invocation
from distributary.cli.words import spelled
from distributary.errors import ConfigError, ErrorCode
from distributary.run.claim import refuse_owned
from distributary.run.parts import make_inferred


def forget_schema(call: Invocation, name: str, file: Path, *, dry_run: bool) -> None:
    """Forget one inferred schema of a pipeline that does not run."""
    pipeline = open_pipeline(call, file)
    inferred = make_inferred(pipeline.config)
    claims = () if inferred is None else inferred.claims()
    claim = _found(name, claims, where=str(file))
    data = {"pipeline": pipeline.config.name, "schema": spelled(claim), "dry_run": dry_run}
    if inferred is not None and not dry_run:
        refuse_owned(pipeline.checkpoint_folder)
        inferred.forget(claim)
    words = f"{'would forget' if dry_run else 'forgot'} what records of {spelled(claim)} look like"
    call.out.show(data | {"forgotten": not dry_run}, lambda paper: paper.line(words))


def _found(name: str, claims: Sequence[str], *, where: str) -> str:
    """The claim that is called so, wholly or by the end of its name."""
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
        next_step="say the whole name" if among else "schemas of a registry are changed there",
    )
