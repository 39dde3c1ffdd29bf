"""Asking before something is taken away."""

from __future__ import annotations

import sys

import typer

from distributary.cli.verb import Invocation
from distributary.errors import ConfigError, ErrorCode


def confirmed(call: Invocation, question: str, *, yes: bool, evidence: str) -> bool:
    """By `--yes`, or by a yes in a terminal; without either nothing is done."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "this needs a yes, and there is no terminal to ask in",
            code=ErrorCode.CONFIRMATION_NEEDED,
            evidence=evidence,
            next_step="add --yes, or --dry-run to see what would be done",
        )
    agreed = typer.confirm(question, default=False, err=True)
    if not agreed:
        call.out.note("nothing was changed")
    return agreed
