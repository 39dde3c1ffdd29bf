"""What every test may use: one Spark session, one broker and registry, one Hypothesis profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.services.shared import connect, debezium, mortal, postgres, services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "connect",
    "debezium",
    "mortal",
    "postgres",
    "pytest_collection_modifyitems",
    "pytest_xdist_make_scheduler",
    "services",
    "spark",
    "tasks",
]

# each takes many seconds to start and to become quick: one process serves all files that need it
_TOGETHER = {
    "brokers": re.compile(r"\b(services|mortal): (Secured)?Services\b|: Debezium\b"),
    "browser": re.compile(r"\blook: Look\b"),
    "spark": re.compile(r"\bspark: SparkSession\b(?! \|)|@pytest\.mark\.sql\b"),
}
_STARTED = {"spark": "spark", "services": "services", "mortal": "services", "postgres": "services"}

# no failure because a machine is busy: what an example takes is nobody's promise
_UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))
# the same few examples on every machine; `make test-properties` looks for others, and many
settings.register_profile("same", _UNHURRIED, derandomize=True, max_examples=20)
settings.register_profile("new", _UNHURRIED, max_examples=200)
settings.load_profile("same")


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


@pytest.fixture(scope="session")
def tasks() -> SparkSession:
    """Return a session whose tasks run in this process, for tests of what the driver does.

    A run takes two thirds of the CPU of one with `spark`, and needs no JVM.
    """
    from distributary.spark.in_process import in_process

    def refuse() -> SparkSession:
        raise AssertionError("this test needs Spark itself: use the fixture `spark`")

    return in_process(refuse)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses the session is a Spark test, whether its author said so or not."""
    started = set()
    for item in items:
        names = getattr(item, "fixturenames", ())
        for name, mark in _STARTED.items():
            if name in names:
                item.add_marker(mark)
        if any(item.get_closest_marker(mark) for mark in ("spark", "services", "slow")):
            started.add(item.path)
    # what takes minutes begins first, so that at the end no process waits for another
    items.sort(key=lambda item: item.path not in started)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay in one process, where they share what its fixtures make.

    Groups would say the same; but with pytest 9.2 and xdist 3.8 they are silently lost.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _process_of(nodeid.partition("::")[0])

    return Files(config, log)


@cache
def _process_of(file: str) -> str:
    """What the files that share a process have in common; else the file itself."""
    text = (Path(__file__).parent.parent / file).read_text("utf-8")
    if "pytest.mark.cluster" in text:
        # starts much of its own
        return file
    return next((name for name, sign in _TOGETHER.items() if sign.search(text)), file)
