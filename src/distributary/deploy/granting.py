"""Carries statements out, and records each before and after: a crash loses track of none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import Protocol

from distributary.deploy.rights import Record, Right, Standing, Statement, Verb, statements
from distributary.deploy.rights_book import RightsBook
from distributary.errors import DeployError, DistributaryError


class Result(StrEnum):
    """What came of a statement."""

    DONE = "done"
    FOUND = "found"
    """Somebody else had granted it already."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """No answer came: it may have been done."""
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A statement and what came of it."""

    statement: Statement
    result: Result
    error: DistributaryError | None = None

    def as_dict(self) -> dict[str, object]:
        """The outcome for `--json`."""
        return self.statement.as_dict() | {
            "result": str(self.result),
            "error": self.error.as_dict() if self.error else None,
        }


class Executor(Protocol):
    """A way to carry statements out."""

    parallel: int
    """How many at the same time."""

    def held_by(self, right: Right) -> bool | None:
        """Whether a right is there already; None where that cannot be asked."""

    def execute(self, statement: Statement) -> None:
        """Do it, or raise; a revoke of what is not there is done.

        DeployUnavailableError means that nobody knows whether it was done, and any error but
        DeployError that no other statement can be carried out either.
        """


def apply_rights(
    book: RightsBook,
    wanted: frozenset[Right],
    executor: Executor,
    *,
    waiting: Callable[[], None],
) -> tuple[Outcome, ...]:
    """Bring the tables' rights to what is wanted; failures are told, and tried again next time."""
    with book.held(waiting=waiting):
        record = book.read()
        planned = statements(wanted, record)
        found = _found(planned, record, executor)
        todo = [statement for statement in planned if statement.right not in found]
        kept = {**_kept(record, wanted), **dict.fromkeys(found, Standing.FOUND)}
        grants = [s.right for s in todo if s.verb is Verb.GRANT]
        if todo or kept != record:
            # before anything is done: what is granted and not recorded could never be revoked
            book.write({**kept, **dict.fromkeys(grants, Standing.PENDING)})
        outcomes: list[Outcome] = []
        try:
            outcomes += _run(todo, executor)
        finally:
            if outcomes:
                book.write(_after(kept, outcomes))
    there = [Outcome(s, Result.FOUND) for s in planned if s.right in found]
    return (*there, *outcomes)


def _found(planned: Sequence[Statement], record: Record, executor: Executor) -> set[Right]:
    asked = [s.right for s in planned if s.verb is Verb.GRANT and s.right not in record]
    with ThreadPoolExecutor(executor.parallel) as pool:
        answers = pool.map(executor.held_by, asked)
        return {right for right, there in zip(asked, answers, strict=True) if there}


def _kept(record: Record, wanted: frozenset[Right]) -> dict[Right, Standing]:
    """The record without what others granted and nobody asks for any more."""
    return {
        right: standing
        for right, standing in record.items()
        if standing is not Standing.FOUND or right in wanted
    }


def _run(todo: Sequence[Statement], executor: Executor) -> list[Outcome]:
    stopped = Event()

    def one(statement: Statement) -> Outcome:
        if stopped.is_set():
            return Outcome(statement, Result.NOT_TRIED)
        try:
            executor.execute(statement)
        except DistributaryError as error:
            if error.retryable or not isinstance(error, DeployError):
                stopped.set()
            return Outcome(statement, Result.UNKNOWN if error.retryable else Result.FAILED, error)
        return Outcome(statement, Result.DONE)

    with ThreadPoolExecutor(executor.parallel) as pool:
        return list(pool.map(one, todo))


def _after(kept: Record, outcomes: Sequence[Outcome]) -> dict[Right, Standing]:
    record = dict(kept)
    for outcome in outcomes:
        right, grant = outcome.statement.right, outcome.statement.verb is Verb.GRANT
        if outcome.result is Result.DONE:
            if grant:
                record[right] = Standing.GRANTED
            else:
                record.pop(right, None)
        elif grant and outcome.result is Result.UNKNOWN:
            record[right] = Standing.PENDING
        # a grant that failed leaves the record as it was, a revoke that failed likewise
    return record
