"""The reference of errors, read from the one tree of exceptions and the list of codes."""

from __future__ import annotations

from collections.abc import Iterator

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode

_INTRODUCTION = """\
# Errors and their exit codes

What each code means and what to do is on the page of [error codes](../errors.md). This one says
how the program itself treats them. From Python every error is a `distributary.DistributaryError`
with `code`, `what`, `where`, `evidence`, `next_step` and `retryable`.

## Exceptions

A code may be raised by several of them; this is the one that each has by itself.

| exception | code | may pass by itself | exit code |
|---|---|---|---|
"""
_CODES = """
## Codes

| code | as |
|---|---|
"""
_FIRST_OF_A_RECORD = ErrorCode.NULL_VALUE
"""From here on the codes are about one record."""


def page() -> str:
    """The page as Markdown."""
    return _INTRODUCTION + "\n".join(_classes()) + "\n" + _CODES + "\n".join(_codes()) + "\n"


def exceptions() -> list[type[DistributaryError]]:
    """Every class of the tree, parents before children."""
    return list(_tree(DistributaryError))


def reasons() -> frozenset[ErrorCode]:
    """The codes that a dead letter can have."""
    every = list(ErrorCode)
    return frozenset(every[every.index(_FIRST_OF_A_RECORD) :])


def _tree(cls: type[DistributaryError]) -> Iterator[type[DistributaryError]]:
    yield cls
    below = [c for c in cls.__subclasses__() if c.__module__ == errors.__name__]
    for child in sorted(below, key=lambda c: c.__name__):
        yield from _tree(child)


def _classes() -> Iterator[str]:
    for cls in exceptions():
        code = f"[`{cls.code}`](../errors.md#{cls.code})"
        yield f"| `{cls.__name__}` | {code} | {'yes' if cls.retryable else ''} | {cls.exit_code} |"


def _codes() -> Iterator[str]:
    letters = reasons()
    for code in ErrorCode:
        use = "reason of a dead letter" if code in letters else "error of a run or a command"
        yield f"| [`{code}`](../errors.md#{code}) | {use} |"
