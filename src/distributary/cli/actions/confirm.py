"""Asking before something is taken away."""

from __future__ import annotations

import sys

import typer

from distributary.cli.verb import Invocation
from distributary.errors import ConfigError, ErrorCode


def confirmed(call: Invocation, question: str, *, yes: bool, evidence: str) -> None:
    """Goes on after `--yes` or a yes in a terminal; otherwise the command ends here."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            "this needs a yes, and there is no terminal to ask in",
            code=ErrorCode.CONFIRMATION_NEEDED,
            evidence=evidence,
            next_step="add --yes, or --dry-run to see what would be done",
        )
    if not typer.confirm(question, default=False, err=True):
        call.out.note("nothing was changed")
        raise KeyboardInterrupt
