"""The two ways to carry out grants: Spark SQL, and Unity Catalog's own API."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from distributary.config.problems import printable
from distributary.deploy.rights import Right, Statement, Verb
from distributary.deploy.workspace import asking
from distributary.errors import DeployError, ErrorCode, SetupError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_LONGEST = 300
_TABLE = "table"
_GONE = "TABLE_OR_VIEW_NOT_FOUND"


class SqlSession(Protocol):
    """What is needed of a Spark session."""

    def sql(self, sqlQuery: str) -> object:
        """Run a statement."""


class SparkExecutor:
    """Statements as SQL, for a session whose catalog knows GRANT."""

    parallel = 1

    def __init__(self, session: SqlSession) -> None:
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
                    evidence=_words(error),
                    next_step="add an authoriser with spark.conf (spark.sql.extensions), or use "
                    "--through databricks",
                ) from error
            raise _refused(statement, _words(error)) from error


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
            and any(held.value == _api_name(right) for held in assignment.privileges or ())
            for assignment in found.privilege_assignments or ()
        )

    def execute(self, statement: Statement) -> None:
        """One change of one principal's privileges."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.catalog import PermissionsChange, Privilege

        right = statement.right
        privileges = [Privilege(_api_name(right))]
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
                    raise _refused(statement, _words(error)) from error


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


def _api_name(right: Right) -> str:
    return right.privilege.replace(" ", "_")


def _refused(statement: Statement, evidence: str) -> DeployError:
    return DeployError(
        f"the {statement.verb} was refused",
        code=ErrorCode.GRANT_REFUSED,
        where=".".join(statement.right.name),
        evidence=evidence,
        next_step="check that the principal exists and that you own the table, then apply again",
    )


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}", longest=_LONGEST)
