"""`validate`: a pipeline file, checked without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from distributary.cli.logs import usage_error
from distributary.cli.output import Paper, counted, styled
from distributary.cli.verb import Invocation
from distributary.config.load import Loaded, load
from distributary.config.show import as_json, json_schema, rows


def validate_file(
    call: Invocation, file: Path | None, *, show_config: bool, print_schema: bool
) -> None:
    """All problems at once as an error, or that there are none."""
    if print_schema:
        schema = json_schema()
        text = json.dumps(schema, indent=2)
        call.out.show({"schema": schema}, lambda paper: paper.lines(text))
    elif file is None:
        raise usage_error("Missing argument 'FILE'.", command="distributary validate")
    else:
        _check(call, file, show_config=show_config)


def _check(call: Invocation, file: Path, *, show_config: bool) -> None:
    loaded = load(file)
    call.out.mask = loaded.mask
    for warning in loaded.warnings:
        call.out.warn(str(warning))
    about = {"file": loaded.file, "pipeline": loaded.config.name, "valid": True}
    if show_config:
        call.out.show(about | as_json(loaded), lambda paper: _draw_settings(paper, loaded))
    else:
        warnings = [warning.as_dict() for warning in loaded.warnings]
        call.out.show(about | {"warnings": warnings}, lambda paper: _draw_validation(paper, loaded))


def _draw_validation(paper: Paper, loaded: Loaded) -> None:
    config, found = loaded.config, len(loaded.warnings)
    paper.line(
        styled(loaded.file, "bold"),
        f" is valid: pipeline {config.name}, source {config.source.type}, trigger {config.trigger}"
        + (f", part {config.shard.part} of {config.shard.of}" if config.shard else "")
        + (f", {counted(found, 'warning')}" if found else ""),
    )


def _draw_settings(paper: Paper, loaded: Loaded) -> None:
    paper.table(
        ("SETTING", "VALUE", "FROM"),
        ((row.key, row.text, styled(str(row.origin), "dim")) for row in rows(loaded)),
        indent=0,
    )
