"""Where tables and progress are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr

from distributary.config.base import Section
from distributary.config.text import TableName, Text


def _below_path(settings: dict[str, Any]) -> str:
    return below(settings["path"], "_checkpoints")


class Lake(Section):
    """The folder of tables. Relative paths start at the working directory."""

    path: Text = Field(examples=["./lake", "s3://bucket/lake"])
    """Folder or address under which every table has its own folder."""
    checkpoint: Annotated[Text, Field(default_factory=_below_path)]
    """Folder of the pipeline's progress; `_checkpoints` under `path` when left out."""
    database: TableName | None = Field(default=None, examples=["default"])
    """Database in which tables are registered; none when left out."""
    storage_options: Mapping[str, SecretStr] = Field(
        default_factory=dict, examples=[{"aws_region": "eu-central-1"}]
    )
    """Credentials and settings of the object store, passed on to the writers."""

    @property
    def is_local(self) -> bool:
        """Whether tables are on a file system of this machine."""
        return local_path(self.path) is not None

    @property
    def local_path(self) -> Path | None:
        """The lake as an absolute path; None for an object store."""
        return local_path(self.path)

    @property
    def address(self) -> str:
        """The lake as an absolute path or, for an object store, as it was given."""
        return absolute(self.path)

    @property
    def options(self) -> dict[str, str]:
        """The storage options in clear; holds secrets."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    def table_path(self, table: str) -> str:
        """The folder of one table."""
        return below(self.path, table)

    def checkpoint_of(self, pipeline: str) -> str:
        """The folder of one pipeline's progress."""
        return below(self.checkpoint, pipeline)


def below(folder: str, name: str) -> str:
    """The address of something in a folder, be it a path or an object store."""
    return f"{folder.rstrip('/')}/{name}"


def absolute(address: str) -> str:
    """An address that means the same in every working directory."""
    local = local_path(address)
    return address if local is None else str(local)


def local_path(address: str) -> Path | None:
    """An address as an absolute path of this machine; None when it has another scheme."""
    scheme, found, rest = address.partition("://")
    if found and scheme != "file":
        return None
    return Path(rest if found else address.removeprefix("file:")).absolute()
