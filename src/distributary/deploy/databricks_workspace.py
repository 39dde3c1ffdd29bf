"""A Databricks workspace through its own SDK, which is an extra; its errors become ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from distributary.config.deploy import DatabricksAccess
from distributary.deploy.file_targets import FileMark, read_mark
from distributary.errors import (
    ConfigError,
    DeployError,
    DeployUnavailableError,
    ErrorCode,
    SetupError,
)
from distributary.model.names import printable
from distributary.retries import attempts_on

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_RETRY_SECONDS = 120
_ANSWER_SECONDS = 30
_LONGEST = 300
PREFIX = "/Workspace"
"""The prefix of workspace files as programs see them."""
_NOT_CONFIGURED = "cannot configure default credentials"
"""The SDK's message when it finds no login at all; its errors differ in the message only."""


class NotLoggedInError(ConfigError):
    """The error of a missing login, as opposed to a login that is refused."""


def open_workspace(settings: DatabricksAccess) -> WorkspaceClient:
    """Return a client that logs in with the environment or a profile.

    Raises SetupError without the extra, NotLoggedInError if no login is configured.
    """
    try:
        sdk = import_module("databricks.sdk")
        core = import_module("databricks.sdk.core")
    except ImportError:
        raise SetupError(
            "the Databricks SDK is not installed",
            code=ErrorCode.EXTRA_MISSING,
            next_step="pip install 'distributary[databricks]'",
        ) from None
    try:
        config = core.Config(
            host=settings.host,
            profile=settings.profile,
            retry_timeout_seconds=_RETRY_SECONDS,
            http_timeout_seconds=_ANSWER_SECONDS,
            product="distributary",
        )
        client: WorkspaceClient = sdk.WorkspaceClient(config=config)
    except ValueError as error:
        kind = NotLoggedInError if _NOT_CONFIGURED in str(error) else ConfigError
        raise kind(
            "there are no credentials for Databricks",
            where=settings.host or os.environ.get("DATABRICKS_HOST", "deploy.databricks.host"),
            evidence=words(error),
            next_step="set DATABRICKS_HOST and DATABRICKS_TOKEN, or name a profile",
        ) from None
    return client


@contextmanager
def asking(client: WorkspaceClient, what: str) -> Iterator[None]:
    """Translate errors of the SDK into our own."""
    from databricks.sdk import errors
    from databricks.sdk.errors.base import DatabricksError

    host = str(client.config.host)
    later = (
        errors.TooManyRequests,
        errors.InternalError,
        errors.TemporarilyUnavailable,
        errors.DeadlineExceeded,
    )
    try:
        yield
    except (*later, TimeoutError, ConnectionError) as error:
        raise DeployUnavailableError(
            f"the workspace could not {what}",
            where=host,
            evidence=words(error),
            next_step="try again later: finished steps are not repeated",
        ) from error
    except DatabricksError as error:
        refused = isinstance(error, errors.PermissionDenied | errors.Unauthenticated)
        raise DeployError(
            f"the workspace refuses to {what}",
            where=host,
            evidence=words(error),
            next_step="ask for the permission, or log in as a user with this permission"
            if refused
            else "correct the deploy section by the message of the workspace",
        ) from error
    except OSError as error:
        # what `requests` raises when there is no network
        raise DeployUnavailableError(
            f"the workspace could not be reached to {what}",
            where=host,
            evidence=type(error).__name__,
            next_step="check deploy.databricks.host and the network, then try again",
        ) from error


class Files:
    """Small files in the workspace, by their absolute paths."""

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.workspace import ExportFormat

        with asking(self._client, f"read {path}"):
            try:
                with self._client.workspace.download(path, format=ExportFormat.RAW) as content:
                    return bytes(content.read())
            except NotFound:
                return None

    def write(self, path: str, content: bytes) -> None:
        """Write a file, also over another one."""
        from databricks.sdk.errors import TemporarilyUnavailable, TooManyRequests
        from databricks.sdk.service.workspace import ImportFormat

        # the SDK retries everything except uploads
        busy = (TooManyRequests, TemporarilyUnavailable)
        with asking(self._client, f"write {path}"):
            self._client.workspace.mkdirs(path.rpartition("/")[0])
            for attempt in attempts_on(busy, most=8, seconds=_RETRY_SECONDS):
                with attempt:
                    # always a file: a source that looks like a notebook would otherwise become one
                    self._client.workspace.upload(
                        path, content, format=ImportFormat.RAW, overwrite=True
                    )

    def remove(self, path: str) -> None:
        """Remove a file, and its folder if nothing else is in it."""
        from databricks.sdk.errors import NotFound

        with asking(self._client, f"remove {path}"):
            folder = path.rpartition("/")[0]
            try:
                self._client.workspace.delete(path)
                if not list(self._client.workspace.list(folder)):
                    self._client.workspace.delete(folder)
            except NotFound:
                return

    def mark(self, path: str) -> tuple[str | None, FileMark | None]:
        """Return a file's text and its mark."""
        content = self.read(path)
        text = None if content is None else content.decode("utf-8", "replace")
        return text, None if text is None else read_mark(text)


def words(error: BaseException) -> str:
    """Return the first line of an error, for evidence."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}", longest=_LONGEST)
