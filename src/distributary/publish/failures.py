"""What went wrong while committing, in our words, and with nothing in it that should not leave."""

from __future__ import annotations

import re

from distributary.errors import LakeUnavailableError, PublishError
from distributary.publish.columns import ColumnConflictError, UnsupportedTypeError
from distributary.publish.races import OvertakenError

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_QUERY = re.compile(r"(://[^\s?\"']*)\?[^\s\"']*")
_LOGIN = re.compile(r"://[^\s/@\"']+@")
_LONGEST = 400
_LASTING = frozenset({"columns", "features", "format", "partitions", "store"})
"""Reasons that somebody has to take away."""


def clean(text: str) -> str:
    """One line of an engine's message: no colours, no stack, no secrets in addresses."""
    text = _ESCAPES.sub("", text)
    lines = [line.strip(" ↳\t") for line in text.split("\n")]
    kept = [line for line in lines if line and not re.match(r"(\d+: |at )", line)]
    one = "".join(c if c.isprintable() else " " for c in "; ".join(kept[:6]))
    return _LOGIN.sub("://***@", _QUERY.sub(r"\1?***", one))[:_LONGEST]


def may_pass(error: PublishError) -> bool:
    """Whether the same commit may succeed a moment later, with nobody doing anything about it."""
    return error.retryable and error.context.get("reason") not in _LASTING


def as_publish_error(error: Exception, *, doing: str, path: str) -> PublishError:
    """The error of ours that fits an exception of the libraries below."""
    evidence = clean(f"{error}") or type(error).__name__
    what = f"cannot {doing}"
    if isinstance(error, PublishError):
        return error
    if isinstance(error, OvertakenError):
        return PublishError(
            what,
            where=path,
            evidence=f"other writers were faster, again and again: {evidence}",
            next_step="let fewer writers commit to this table at the same time",
            reason="overtaken",
        )
    if isinstance(error, ColumnConflictError | UnsupportedTypeError):
        return PublishError(
            what,
            where=path,
            evidence=evidence,
            next_step="the table has changed since the batch was planned: plan it again, or give "
            "the column another name",
            reason="columns",
        )
    if isinstance(error, OSError):
        return LakeUnavailableError(
            what,
            where=path,
            evidence=evidence,
            next_step="check that the lake can be reached and written to, and has room",
        )
    return PublishError(
        what,
        where=path,
        evidence=evidence,
        next_step="if the table uses features that this way of committing does not know, publish "
        "it with Spark",
    )
