"""Carries statements out, and records each before and after: a crash loses track of none."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from threading import Event
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from distributary.config.lake import Grant
from distributary.config.pipeline import PipelineConfig
from distributary.delta.tables import reaching
from distributary.deploy.databricks import asking, words
from distributary.errors import ConfigError, DeployError, DistributaryError, ErrorCode, SetupError
from distributary.model import layout
from distributary.model.expectation import type_spellings
from distributary.model.names import quote_sql
from distributary.observe.rows import TableSummary
from distributary.store.base import at, local_path
from distributary.store.disk import held

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from pyspark.sql import SparkSession


# Who may do what with which table: wanted, recorded, and the statements between the two.


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One privilege of one principal on one table."""

    name: tuple[str, ...]
    """The table's full name in its parts: catalog if there is one, database, table."""
    principal: str
    privilege: str


class Standing(StrEnum):
    """How a recorded right came to be."""

    GRANTED = "granted"
    PENDING = "pending"
    """We were about to grant it, and do not know whether it was done."""
    FOUND = "found"
    """Somebody else had granted it before: it is never revoked by us."""


Record = Mapping[Right, Standing]


class Verb(StrEnum):
    """The two kinds of statements."""

    GRANT = "grant"
    REVOKE = "revoke"


@dataclass(frozen=True, slots=True, order=True)
class Statement:
    """A grant or a revoke."""

    verb: Verb
    right: Right

    @property
    def sql(self) -> str:
        """The statement with every name quoted."""
        table = ".".join(map(quote_sql, self.right.name))
        direction = "TO" if self.verb is Verb.GRANT else "FROM"
        return (
            f"{self.verb.upper()} {self.right.privilege} ON TABLE {table} "
            f"{direction} {quote_sql(self.right.principal)}"
        )

    def as_dict(self) -> dict[str, object]:
        """The statement for `--json`."""
        return {
            "verb": str(self.verb),
            "table": list(self.right.name),
            "principal": self.right.principal,
            "privilege": self.right.privilege,
            "sql": self.sql,
        }


def wanted_rights(config: PipelineConfig, tables: Iterable[TableSummary]) -> frozenset[Right]:
    """What the file asks for, of the tables that are there."""
    if not config.grants:
        return frozenset()
    place = _place(config)
    hidden_logs = config.cdc is not None and not config.cdc.log
    return frozenset(
        Right((*place, table.table), principal, privilege)
        for table in tables
        if not (hidden_logs and table.role == "log")
        for grant in config.grants
        if _fits(grant, table)
        for principal in grant.principals
        for privilege in grant.privileges
    )


def statements(wanted: Iterable[Right], record: Record) -> tuple[Statement, ...]:
    """What is missing is granted, then what we granted and nobody asks for any more is revoked."""
    asked = set(wanted)
    done = {right for right, standing in record.items() if standing is not Standing.PENDING}
    ours = {right for right, standing in record.items() if standing is not Standing.FOUND}
    return (
        *(Statement(Verb.GRANT, right) for right in sorted(asked - done)),
        *(Statement(Verb.REVOKE, right) for right in sorted(ours - asked)),
    )


def _place(config: PipelineConfig) -> tuple[str, ...]:
    catalog = config.lake.registered_in
    if catalog is None:
        raise ConfigError(
            "grants need tables that are registered in a catalog",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where="lake.catalog",
            next_step="set lake.catalog, run the pipeline once, then try again",
        )
    databricks = config.deploy.databricks if config.deploy is not None else None
    named = databricks.catalog if databricks is not None else None
    if len(catalog.names) > 1 or not named:
        return catalog.names
    return (named, *catalog.names)


def _fits(grant: Grant, table: TableSummary) -> bool:
    by_name = any(fnmatchcase(table.table, pattern) for pattern in grant.tables)
    names = filter(None, type_spellings(table.type))
    by_type = any(fnmatchcase(name, pattern) for name in names for pattern in grant.types)
    return (by_name or not grant.tables) and (by_type or not grant.types)


# The two ways to carry out grants: Spark SQL, and Unity Catalog's own API.

_TABLE = "table"
_GONE = "TABLE_OR_VIEW_NOT_FOUND"


class SparkExecutor:
    """Statements as SQL, for a session whose catalog knows GRANT."""

    parallel = 1

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def held_by(self, right: Right) -> bool | None:
        """Every authoriser has its own words for this: not asked."""
        return None

    def execute(self, statement: Statement) -> None:
        """One statement."""
        try:
            with _unlogged():
                self._session.sql(statement.sql)
        except Exception as error:
            # Spark's own classes are not imported here: a command must not need them
            if statement.verb is Verb.REVOKE and _GONE in str(error):
                return
            if type(error).__name__ == "ParseException":
                raise SetupError(
                    "this Spark does not know GRANT: no authoriser is installed",
                    code=ErrorCode.GRANT_REFUSED,
                    evidence=words(error),
                    next_step="add an authoriser with spark.conf (spark.sql.extensions), or use "
                    "--through databricks",
                ) from error
            raise _refused(statement, words(error)) from error


class CatalogExecutor:
    """The permissions of Unity Catalog: names travel as data, never as a part of a statement."""

    parallel = 8

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def held_by(self, right: Right) -> bool | None:
        """Whether exactly this was granted on the table itself."""
        from databricks.sdk.errors import NotFound

        with asking(self._client, f"show the grants of {'.'.join(right.name)}"):
            try:
                found = self._client.grants.get(
                    _TABLE, _full_name(right), principal=right.principal
                )
            except NotFound:
                return False
        return any(
            assignment.principal == right.principal
            and any(
                held.value == right.privilege.replace(" ", "_")
                for held in assignment.privileges or ()
            )
            for assignment in found.privilege_assignments or ()
        )

    def execute(self, statement: Statement) -> None:
        """One change of one principal's privileges."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.catalog import PermissionsChange, Privilege

        right = statement.right
        privileges = [Privilege(right.privilege.replace(" ", "_"))]
        grant = statement.verb is Verb.GRANT
        change = PermissionsChange(
            principal=right.principal,
            add=privileges if grant else None,
            remove=None if grant else privileges,
        )
        with asking(self._client, f"{statement.verb} {right.privilege}"):
            try:
                self._client.grants.update(_TABLE, _full_name(right), changes=[change])
            except NotFound as error:
                # what is gone has no grants left
                if grant:
                    raise _refused(statement, words(error)) from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """PySpark prints what it raises, with the traceback of the JVM: we tell it ourselves."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _full_name(right: Right) -> str:
    # the SDK puts it into an address as it is
    return ".".join(quote(part, safe="") for part in right.name)


def _refused(statement: Statement, evidence: str) -> DeployError:
    return DeployError(
        f"the {statement.verb} was refused",
        code=ErrorCode.GRANT_REFUSED,
        where=".".join(statement.right.name),
        evidence=evidence,
        next_step="check that the principal exists and that you own the table, then apply again",
    )


# The record of what was granted, in the lake: only what stands in it is ever revoked.

FORMAT = 1


class RightsBook:
    """One small file of a pipeline; it stays when the pipeline is reset or cleaned."""

    def __init__(self, lake: str, pipeline: str) -> None:
        self._folder = layout.join(lake, layout.HOME, "grants")
        self._name = f"{layout.folder_name(pipeline)}.json"
        self.path = f"{self._folder}/{self._name}"
        self._pipeline = pipeline

    def read(self) -> dict[Right, Standing]:
        """What is recorded; nothing where nothing was ever granted."""
        data = self._bytes()
        if data is None:
            return {}
        try:
            content = json.loads(data)
            if content["format"] != FORMAT or content["pipeline"] != self._pipeline:
                raise ValueError
            rows = content["rights"]
            rights = [Right(tuple(r["name"]), r["principal"], r["privilege"]) for r in rows]
            standings = [Standing(row["standing"]) for row in rows]
            return dict(zip(rights, standings, strict=True))
        except (ValueError, KeyError, TypeError) as error:
            raise DeployError(
                "the record of what was granted cannot be read",
                where=self.path,
                evidence=type(error).__name__,
                next_step="restore it from a backup: without it nothing can be revoked safely",
            ) from None

    def write(self, record: Record) -> None:
        """Put the record in place of the one before; a crash leaves the one or the other."""
        rows = [asdict(right) | {"standing": record[right]} for right in sorted(record)]
        content = {"format": FORMAT, "pipeline": self._pipeline, "rights": rows}
        data = json.dumps(content, indent=1).encode()
        with reaching(self.path):
            at(self._folder).write(self._name, data)

    @contextmanager
    def held(self, *, waiting: Callable[[], None]) -> Iterator[None]:
        """One change of grants at a time, among processes that see the same file system."""
        record = local_path(self.path)
        if record is None:
            yield
            return
        with reaching(self.path):
            record.parent.mkdir(parents=True, exist_ok=True)
            lock = record.with_suffix(".lock").open("a")
        with lock, held(lock, waiting=waiting):
            yield

    def _bytes(self) -> bytes | None:
        with reaching(self.path), suppress(FileNotFoundError):
            return at(self._folder).read(self._name)
        return None


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
