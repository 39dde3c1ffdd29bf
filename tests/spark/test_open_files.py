"""A limit on open files that is too low is raised if it may be, and named if not."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from distributary.engine.loop import _unexpected
from distributary.errors import ErrorCode
from distributary.spark import session
from distributary.spark.session import _did_not_start, spark_failed

MISSING = "java.lang.NoClassDefFoundError: org/apache/spark/sql/Row"


def _allow(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))


@pytest.mark.parametrize(("hard", "expected"), [(4096, 4096), (300, 300), (100_000, 65_536)])
def test_what_a_process_may_have_it_takes(hard: int, expected: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        hard = expected = min(expected, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    script = (
        "import resource\n"
        "from distributary.spark.session import raise_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard}))\n"
        "raise_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == expected


def test_a_limit_that_is_high_enough_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    _allow(monkeypatch, 1_000_000)
    session.raise_limit()


@pytest.mark.parametrize(
    "text",
    [
        "OSError: [Errno 24] Too many open files: '/lake/x'",
        "java.io.IOException: Too many open files",
    ],
)
def test_files_that_cannot_be_opened_name_the_limit(text: str) -> None:
    for found in (spark_failed(PySparkException(text)), _unexpected(Py4JError(text), 3)):
        assert found.code is ErrorCode.SPARK_FAILED
        assert found.context["limit"] == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def test_a_class_that_is_missing_is_a_matter_of_files_where_few_may_be_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "spark.log"
    log.write_text(f"{MISSING}\n")
    _allow(monkeypatch, 256)
    assert spark_failed(PySparkException(MISSING)).context["limit"] == "256"
    assert _did_not_start("local[2]", log, Py4JError("gone")).context["limit"] == "256"
    _allow(monkeypatch, 100_000)
    assert "limit" not in spark_failed(PySparkException(MISSING)).context
    assert "limit" not in _did_not_start("local[2]", log, Py4JError("gone")).context
