"""Grants on tables: the statements, their execution, and the record that survives a crash."""

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
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.tables import reaching_table
from distributary.deploy.databricks_workspace import asking, words
from distributary.errors import ConfigError, DeployError, DistributaryError, ErrorCode, SetupError
from distributary.model import layout
from distributary.model.names import quote_sql
from distributary.model.rules.expectation import type_spellings
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.store.base import at, local_path
from distributary.store.disk import held

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from pyspark.sql import SparkSession


# Rights on tables: as the file wants them, as they are recorded, and the statements between the
# two.


_USE_CATALOG, _USE_SCHEMA = "USE CATALOG", "USE SCHEMA"
_HOLDERS = {_USE_CATALOG: "catalog", _USE_SCHEMA: "schema"}
"""The privileges that are not on a table, and what they are on."""
_PARTS = 3


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One privilege of one principal on one table, or on the schema or catalog that holds it."""

    name: tuple[str, ...]
    """The full name in its parts: catalog if there is one, database, table."""
    principal: str
    privilege: str

    @property
    def securable(self) -> str:
        """Return the kind of the thing with this name: `table`, `schema` or `catalog`."""
        return _HOLDERS.get(self.privilege, "table")


class Standing(StrEnum):
    """The origin of a recorded right."""

    GRANTED = "granted"
    PENDING = "pending"
    """We were about to grant it; the result is unknown."""
    FOUND = "found"
    """Another user had granted the privilege before: `grants` never revokes it."""


Record = Mapping[Right, Standing]


class Verb(StrEnum):
    """The two kinds of statements."""

    GRANT = "grant"
    REVOKE = "revoke"


@dataclass(frozen=True, slots=True, order=True)
class GrantStatement:
    """A grant or a revoke."""

    verb: Verb
    right: Right

    @property
    def sql(self) -> str:
        """Return the statement with every name quoted."""
        table = ".".join(map(quote_sql, self.right.name))
        direction = "TO" if self.verb is Verb.GRANT else "FROM"
        return (
            f"{self.verb.upper()} {self.right.privilege} ON {self.right.securable.upper()} {table} "
            f"{direction} {quote_sql(self.right.principal)}"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the statement for `--json`."""
        return {
            "verb": str(self.verb),
            "table": list(self.right.name),
            "principal": self.right.principal,
            "privilege": self.right.privilege,
            "sql": self.sql,
        }


def wanted_rights(config: PipelineConfig, tables: Iterable[TableSummary]) -> frozenset[Right]:
    """Return the rights that the file asks for, on existing tables."""
    if not config.grants:
        return frozenset()
    place = _place(config)
    return frozenset(
        Right(_holder((*place, table.table), privilege), principal, privilege)
        for table in tables
        if not (config.hides_logs and table.role == Role.LOG)
        for grant in config.grants
        if _fits(grant, table)
        for principal in grant.principals
        for privilege in grant.privileges
    )


def _holder(table: tuple[str, ...], privilege: str) -> tuple[str, ...]:
    """Return the name of what a privilege is on: the table, its schema or its catalog."""
    if privilege not in _HOLDERS:
        return table
    if len(table) != _PARTS:
        raise ConfigError(
            f"{privilege} needs tables with a catalog, a schema and a name",
            where="grants",
            evidence=".".join(table),
            next_step="name the catalog with lake.catalog or deploy.databricks.catalog",
        )
    return table[:1] if privilege == _USE_CATALOG else table[:2]


def statements(wanted: Iterable[Right], record: Record) -> tuple[GrantStatement, ...]:
    """Return grants of missing rights, then revokes of our rights that are no longer wanted."""
    wanted_set = set(wanted)
    done = {right for right, standing in record.items() if standing is not Standing.PENDING}
    # tables of other pipelines may need the privileges on a schema or a catalog
    ours = {
        right
        for right, standing in record.items()
        if standing is not Standing.FOUND and right.privilege not in _HOLDERS
    }
    return (
        *(GrantStatement(Verb.GRANT, right) for right in sorted(wanted_set - done)),
        *(GrantStatement(Verb.REVOKE, right) for right in sorted(ours - wanted_set)),
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


# The two ways to execute statements: Spark SQL, and Unity Catalog's own API.

_GONE = "TABLE_OR_VIEW_NOT_FOUND"


class SparkExecutor:
    """Executes statements as SQL, in a session whose catalog supports GRANT."""

    parallel = 1

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def held_by(self, right: Right) -> bool | None:
        """Return None: every authoriser has its own syntax for this question."""
        return None

    def execute(self, statement: GrantStatement) -> None:
        """Execute one statement."""
        try:
            with _unlogged():
                self._session.sql(statement.sql)
        except Exception as error:
            # Spark's own classes are not imported here: a command must work without them
            if statement.verb is Verb.REVOKE and _GONE in str(error):
                return
            if type(error).__name__ == "ParseException":
                raise SetupError(
                    "this Spark does not support GRANT: no authoriser is installed",
                    code=ErrorCode.GRANT_REFUSED,
                    evidence=words(error),
                    next_step="add an authoriser with spark.conf (spark.sql.extensions), or use "
                    "--through databricks",
                ) from error
            raise _refused(statement, words(error)) from error


class CatalogExecutor:
    """Executes statements by Unity Catalog's API.

    Names are sent as data, never as part of a statement.
    """

    parallel = 8

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def held_by(self, right: Right) -> bool | None:
        """Return whether exactly this right was granted on the table itself."""
        from databricks.sdk.errors import NotFound

        with asking(self._client, f"show the grants of {'.'.join(right.name)}"):
            try:
                answer = self._client.grants.get(
                    right.securable, _full_name(right), principal=right.principal
                )
            except NotFound:
                return False
        return any(
            assignment.principal == right.principal
            and any(
                held.value == right.privilege.replace(" ", "_")
                for held in assignment.privileges or ()
            )
            for assignment in answer.privilege_assignments or ()
        )

    def execute(self, statement: GrantStatement) -> None:
        """Change one principal's privileges."""
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
                self._client.grants.update(right.securable, _full_name(right), changes=[change])
            except NotFound as error:
                # a table that was dropped has no grants left
                if grant:
                    raise _refused(statement, words(error)) from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence PySpark, which logs what it raises with the traceback of the JVM."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _full_name(right: Right) -> str:
    # the SDK puts it into an address without quoting
    return ".".join(quote(part, safe="") for part in right.name)


def _refused(statement: GrantStatement, evidence: str) -> DeployError:
    return DeployError(
        f"the {statement.verb} was refused",
        code=ErrorCode.GRANT_REFUSED,
        where=".".join(statement.right.name),
        evidence=evidence,
        next_step="check that the principal exists and that you own the table, then apply again",
    )


# The record of grants in the lake: only rights in it are ever revoked.

FORMAT = 1


class RightsBook:
    """The small file of a pipeline's grants; it stays when the pipeline is reset or cleaned."""

    def __init__(self, lake: str, pipeline: str) -> None:
        self._folder = layout.join(lake, layout.HOME, "grants")
        self._name = f"{layout.folder_name(pipeline)}.json"
        self.path = f"{self._folder}/{self._name}"
        self._pipeline = pipeline

    def read(self) -> dict[Right, Standing]:
        """Return the recorded rights; empty if none was ever granted."""
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
                "the record of grants cannot be read",
                where=self.path,
                evidence=type(error).__name__,
                next_step="restore it from a backup: without it, grants cannot be revoked safely",
            ) from None

    def write(self, record: Record) -> None:
        """Replace the record; after a crash it is the old or the new one."""
        rows = [asdict(right) | {"standing": record[right]} for right in sorted(record)]
        content = {"format": FORMAT, "pipeline": self._pipeline, "rights": rows}
        data = json.dumps(content, indent=1).encode()
        with reaching_table(self.path):
            at(self._folder).write(self._name, data)

    @contextmanager
    def held(self, *, waiting: Callable[[], None]) -> Iterator[None]:
        """Lock the record while the context lasts, for processes that share a file system."""
        record = local_path(self.path)
        if record is None:
            yield
            return
        with reaching_table(self.path):
            record.parent.mkdir(parents=True, exist_ok=True)
            lock = record.with_suffix(".lock").open("a")
        with lock, held(lock, waiting=waiting):
            yield

    def _bytes(self) -> bytes | None:
        with reaching_table(self.path), suppress(FileNotFoundError):
            return at(self._folder).read(self._name)
        return None


class GrantResult(StrEnum):
    """The results of a statement."""

    DONE = "done"
    FOUND = "found"
    """Another user had already granted the privilege."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """No answer arrived: the statement may have been executed."""
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """A statement and its result."""

    statement: GrantStatement
    result: GrantResult
    error: DistributaryError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the outcome for `--json`."""
        return self.statement.as_dict() | {
            "result": str(self.result),
            "error": self.error.as_dict() if self.error else None,
        }


class Executor(Protocol):
    """A way to execute statements."""

    parallel: int
    """The number of statements at the same time."""

    def held_by(self, right: Right) -> bool | None:
        """Return whether a right exists already; None if that cannot be asked."""

    def execute(self, statement: GrantStatement) -> None:
        """Execute a statement, or raise; revoking a right that does not exist succeeds.

        DeployUnavailableError means that the result is unknown. Any error but DeployError means
        that no other statement can be executed either.
        """


def apply_rights(
    book: RightsBook,
    wanted: frozenset[Right],
    executor: Executor,
    *,
    waiting: Callable[[], None],
) -> tuple[StatementOutcome, ...]:
    """Bring the tables' rights to the wanted state; failures are reported and retried next time."""
    with book.held(waiting=waiting):
        record = book.read()
        planned = statements(wanted, record)
        existing = _found(planned, record, executor)
        todo = [statement for statement in planned if statement.right not in existing]
        kept = {**_kept(record, wanted), **dict.fromkeys(existing, Standing.FOUND)}
        grants = [s.right for s in todo if s.verb is Verb.GRANT]
        if todo or kept != record:
            # before anything is done: a right that is granted but not recorded could never be
            # revoked
            book.write({**kept, **dict.fromkeys(grants, Standing.PENDING)})
        outcomes: list[StatementOutcome] = []
        try:
            outcomes += _run(todo, executor)
        finally:
            if outcomes:
                book.write(_after(kept, outcomes))
    there = [StatementOutcome(s, GrantResult.FOUND) for s in planned if s.right in existing]
    return (*there, *outcomes)


def _found(planned: Sequence[GrantStatement], record: Record, executor: Executor) -> set[Right]:
    rights = [s.right for s in planned if s.verb is Verb.GRANT and s.right not in record]
    with ThreadPoolExecutor(executor.parallel) as pool:
        answers = pool.map(executor.held_by, rights)
        return {right for right, there in zip(rights, answers, strict=True) if there}


def _kept(record: Record, wanted: frozenset[Right]) -> dict[Right, Standing]:
    """Return the record without rights that others granted and the file no longer wants."""
    return {
        right: standing
        for right, standing in record.items()
        if standing is not Standing.FOUND or right in wanted
    }


def _run(todo: Sequence[GrantStatement], executor: Executor) -> list[StatementOutcome]:
    stopped = Event()

    def one(statement: GrantStatement) -> StatementOutcome:
        if stopped.is_set():
            return StatementOutcome(statement, GrantResult.NOT_TRIED)
        try:
            executor.execute(statement)
        except DistributaryError as error:
            if error.retryable or not isinstance(error, DeployError):
                stopped.set()
            return StatementOutcome(
                statement, GrantResult.UNKNOWN if error.retryable else GrantResult.FAILED, error
            )
        return StatementOutcome(statement, GrantResult.DONE)

    with ThreadPoolExecutor(executor.parallel) as pool:
        return list(pool.map(one, todo))


def _after(kept: Record, outcomes: Sequence[StatementOutcome]) -> dict[Right, Standing]:
    record = dict(kept)
    for outcome in outcomes:
        right, grant = outcome.statement.right, outcome.statement.verb is Verb.GRANT
        if outcome.result is GrantResult.DONE:
            if grant:
                record[right] = Standing.GRANTED
            else:
                record.pop(right, None)
        elif grant and outcome.result is GrantResult.UNKNOWN:
            record[right] = Standing.PENDING
        # a failed grant leaves the record unchanged, and so does a failed revoke
    return record
