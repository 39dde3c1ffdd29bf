"""A pipeline file, a folder of its own, a workspace, and commands run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from databricks.sdk.clock import RealClock

from distributary.deploy import package
from distributary.deploy.pipeline_file import Installable, read_for_install
from tests.cli.conftest import cli, own_folder
from tests.deploy.workspace import TOKEN, Workspace, serving

__all__ = ["cli", "own_folder"]

PIPELINE = """\
name: {name}
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:9092
  topics: [wrapper]
  security:
    {{protocol: SASL_SSL, mechanism: PLAIN, username: me, password: "${{env:KAFKA_SECRET}}"}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}"}}
lake: {{path: "{lake}", database: games}}
trigger: continuous
"""

Write = Callable[..., Path]
_wheel = cache(package.wheel)


@pytest.fixture
def write(own_folder: Path) -> Write:
    """`write("deploy: {...}")` makes a pipeline file; nobody has set its secret."""

    def make(
        extra: str = "",
        *,
        name: str = "games",
        file: str = "games.yaml",
        lake: str = "s3://bucket/lake",
    ) -> Path:
        path = own_folder / file
        path.write_text(PIPELINE.format(name=name, lake=lake) + extra)
        return path

    return make


@pytest.fixture
def installable(write: Write) -> Callable[..., Installable]:
    def make(extra: str = "", **given: str) -> Installable:
        return read_for_install(write(extra, **given), environ={})

    return make


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Workspace]:
    for name in ("DATABRICKS_HOST", "DATABRICKS_CONFIG_PROFILE", "DATABRICKS_RUNTIME_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    monkeypatch.setenv("DATABRICKS_AUTH_TYPE", "pat")
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    # each test would make the same one, which takes most of its time
    monkeypatch.setattr(package, "wheel", _wheel)
    with serving() as made:
        monkeypatch.setattr(RealClock, "sleep", lambda self, seconds: made.waited.append(seconds))
        yield made


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No login to Databricks is found anywhere: no variable, no file, no program that has one."""
    for name in [*os.environ]:
        if name.startswith(("DATABRICKS_", "ARM_", "AZURE_", "GOOGLE_", "ACTIONS_", "SYSTEM_")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(home))
