"""What every test may use: one Spark session, one broker and registry, one Hypothesis profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.services.shared import debezium, mortal, postgres, services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["debezium", "mortal", "postgres", "pytest_collection_modifyitems", "services", "spark"]

# each takes many seconds to start, and few files need it: one process serves all of those
_TOGETHER = ("debezium", "mortal", "browser")
_STARTED = {"spark": "spark", "services": "services", "mortal": "services", "postgres": "services"}

# the same examples on every machine, and no failure because a machine is busy
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs write into the user's own folder is not left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session per test process: two cores, no page, no fixed port, log in the test folder."""
    # tests without Spark must not pay for its import
    from distributary.spark.session import spark_session
    from distributary.spark.settings import SparkSettings

    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        SparkSettings(
            master="local[2]",
            driver_memory="2g",
            conf={
                "spark.sql.shuffle.partitions": "2",
                # plans of a few rows need no second thought: it costs a sixth of each statement
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            },
            log_file=folder / "spark.log",
            short_lived=True,
        ),
        app_name="tests",
    )
    yield session
    session.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses the session is a Spark test, whether its author said so or not.

    Before xdist looks for groups: one that comes later is silently lost.
    """
    started = set()
    groups: dict[Path, str] = {}
    for item in items:
        names = getattr(item, "fixturenames", ())
        for name, mark in _STARTED.items():
            if name in names:
                item.add_marker(mark)
        if any(item.get_closest_marker(mark) for mark in ("spark", "services", "slow")):
            started.add(item.path)
        # tests of a file stay together: they share what its fixtures make
        groups.setdefault(item.path, item.nodeid.partition("::")[0])
        for name in _TOGETHER:
            if name in names:
                groups[item.path] = name
        if item.get_closest_marker("sql"):
            groups[item.path] = "sql"
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    # what takes minutes begins first, so that at the end no process waits for another
    items.sort(key=lambda item: item.path not in started)
