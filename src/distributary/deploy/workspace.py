"""A Databricks workspace through its own SDK, which is an extra; its errors in our words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import stamina

from distributary.config.deploy import Databricks
from distributary.config.problems import printable
from distributary.deploy.mark import Mark, read_mark
from distributary.errors import (
    ConfigError,
    DeployError,
    DeployUnavailableError,
    ErrorCode,
    SetupError,
)

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_RETRY_SECONDS = 120
_ANSWER_SECONDS = 30
_LONGEST = 300
_PREFIX = "/Workspace"
_NOT_CONFIGURED = "cannot configure default credentials"
"""What the SDK says when it finds no login at all; of its errors, only the words differ."""


class NotLoggedInError(ConfigError):
    """There is no login, as opposed to one that does not work."""


def open_workspace(settings: Databricks) -> WorkspaceClient:
    """A client that logs in by the environment or a profile.

    SetupError without the extra, NotLoggedInError where no login is configured.
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
            "nobody is logged in to Databricks",
            where=settings.host or os.environ.get("DATABRICKS_HOST", "deploy.databricks.host"),
            evidence=_words(error),
            next_step="set DATABRICKS_HOST and DATABRICKS_TOKEN, or name a profile; see "
            "docs/deploy.md",
        ) from None
    return client


@contextmanager
def asking(client: WorkspaceClient, what: str) -> Iterator[None]:
    """Turns what the SDK raises into our own errors."""
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
            evidence=_words(error),
            next_step="try again later: what was done is found again, and nothing is made twice",
        ) from error
    except DatabricksError as error:
        refused = isinstance(error, errors.PermissionDenied | errors.Unauthenticated)
        raise DeployError(
            f"the workspace refuses to {what}",
            where=host,
            evidence=_words(error),
            next_step="ask for the right to it, or log in as somebody who has it"
            if refused
            else "correct the deploy section as the workspace says",
        ) from error
    except OSError as error:
        # what `requests` raises when there is no network
        raise DeployUnavailableError(
            f"the workspace could not be asked to {what}",
            where=host,
            evidence=type(error).__name__,
            next_step="check deploy.databricks.host and the network, then try again",
        ) from error


class Files:
    """Small texts in the workspace, by their absolute paths."""

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def read(self, path: str) -> str | None:
        """A file's text; None where there is none."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.workspace import ExportFormat

        with asking(self._client, f"read {path}"):
            try:
                with self._client.workspace.download(path, format=ExportFormat.RAW) as content:
                    return content.read().decode("utf-8", "replace")
            except NotFound:
                return None

    def write(self, path: str, text: str) -> None:
        """Put a file in place of another, or of none."""
        from databricks.sdk.errors import TemporarilyUnavailable, TooManyRequests
        from databricks.sdk.service.workspace import ImportFormat

        # the SDK tries everything again but uploads
        busy = (TooManyRequests, TemporarilyUnavailable)
        with asking(self._client, f"write {path}"):
            self._client.workspace.mkdirs(path.rpartition("/")[0])
            for attempt in stamina.retry_context(on=busy, attempts=8, timeout=_RETRY_SECONDS):
                with attempt:
                    # always a file: what looks like a notebook would become one otherwise
                    self._client.workspace.upload(
                        path, text.encode(), format=ImportFormat.RAW, overwrite=True
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

    def mark(self, path: str) -> tuple[str | None, Mark | None]:
        """A file's text and its mark."""
        text = self.read(path)
        return text, None if text is None else read_mark(text)


def user_name(client: WorkspaceClient) -> str:
    """Who is logged in."""
    with asking(client, "say who is logged in"):
        return str(client.current_user.me().user_name)


def home_folder(user: str, pipeline: str) -> str:
    """A folder of the user's own: in a shared one anybody could change what the job runs."""
    return f"/Users/{user}/.distributary/{pipeline}"


def api_path(folder: str) -> str:
    """A folder as the API names it."""
    return folder.removeprefix(_PREFIX) or "/"


def file_path(path: str) -> str:
    """The same as programs in the workspace see it."""
    return f"{_PREFIX}{path}"


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}", longest=_LONGEST)
