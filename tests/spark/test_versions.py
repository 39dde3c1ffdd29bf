from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest

from distributary import Pipeline
from distributary.cli.doctor import checks_of_machine
from distributary.errors import ErrorCode, SetupError
from distributary.model.check import CheckState
from distributary.spark.session import spark_session
from distributary.spark.versions import (
    NEEDED,
    VERSIONS,
    is_supported,
    minor_of,
    pyspark_version,
    require_delta,
    require_pipelines,
    require_session,
)


class SparkSession:
    """A session as far as its version is asked for."""

    def __init__(self, version: str, **conf: str) -> None:
        self.version, self.conf = version, conf


def session(version: str, **conf: str) -> Any:
    return cast(Any, SparkSession(version, **conf))


@pytest.fixture
def pyspark_is(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    return lambda version: monkeypatch.setattr(pyspark, "__version__", version)


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(version: str) -> None:
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / f"spark-core_2.13-{version}.jar").touch()
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    return make


@pytest.mark.parametrize(
    ("version", "minor", "ours"),
    [
        ("4.0.5", "4.0", True),
        ("4.1.0-amzn-0", "4.1", True),
        ("4.2.0.dev1", "4.2", True),
        ("4.3.0", "4.3", True),
        ("3.5.9", "3.5", False),
        ("4.10.0", "4.10", False),
        ("5.0.0", "5.0", False),
        ("14.1.0", "14.1", False),
        ("", "", False),
        ("custom", "", False),
    ],
)
def test_which_versions_are_ours(version: str, minor: str, ours: bool) -> None:
    assert (minor_of(version), is_supported(version)) == (minor, ours)


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0"])
def test_no_session_is_started_with_another_pyspark(
    version: str, pyspark_is: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark_is(version)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(SetupError) as caught:
        spark_session()
    error = caught.value
    assert NEEDED in error.what and version in (error.evidence or "")
    assert ">=4.0,<4.4" in (error.next_step or "")


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0"])
def test_doctor_says_which_versions_fit(version: str, pyspark_is: Any) -> None:
    pyspark_is(version)
    checks = {check.name: check for check in checks_of_machine()}
    assert checks["spark"].state is CheckState.FAIL
    assert NEEDED in checks["spark"].found and version in checks["spark"].found


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_doctor_passes_each_version_with_its_delta(version: str, pyspark_is: Any) -> None:
    pyspark_is(version)
    check = {check.name: check for check in checks_of_machine()}["spark"]
    assert (check.state, check.needed) == (CheckState.PASS, NEEDED)
    assert ("without Delta" in check.found) is version.startswith("4.3")


def test_doctor_finds_a_spark_home_that_pyspark_cannot_start(
    pyspark_is: Any, spark_home: Any
) -> None:
    pyspark_is("4.1.1")
    spark_home("4.0.2-amzn-0")
    check = {check.name: check for check in checks_of_machine()}["spark"]
    assert check.state is CheckState.FAIL
    assert "4.0.2-amzn-0" in check.found and "4.1.1" in check.found


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0"])
def test_a_pipeline_refuses_a_session_with_another_spark(
    version: str, tmp_path: Path, pyspark_is: Any
) -> None:
    topics = {"type": "kafka", "bootstrap_servers": "localhost:1", "topics": ["games"]}
    pipeline = Pipeline.from_dict(
        {
            "name": "games",
            "source": topics,
            "payload": {"format": "json"},
            "tables": {"each": "silver_{type}"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )
    with pytest.raises(SetupError) as caught:
        pipeline.run(trigger="available_now", spark=session(version))
    assert NEEDED in caught.value.what and version in (caught.value.evidence or "")
    assert not (tmp_path / "lake").exists()


def test_a_server_may_be_newer_than_its_client_and_not_older(pyspark_is: Any) -> None:
    pyspark_is("4.1.1")
    for version in ("4.1.4", "4.2.1", "4.3.0"):
        require_session(session(version), "sc://host")
    with pytest.raises(SetupError) as caught:
        require_session(session("4.0.5"), "sc://host")
    assert "pyspark==4.0.*" in (caught.value.next_step or "")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_needs_deltas_library_is_refused_where_there_is_none(
    version: str, pyspark_is: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark_is(f"{version}.0")
    if version != "4.3":
        require_delta(session(f"{version}.0"), "x")
        return
    for spark in (session("4.3.0"), None):
        with pytest.raises(SetupError) as caught:
            require_delta(spark, "tables.publisher: spark")
        assert caught.value.code is ErrorCode.CONNECTORS_MISSING
        assert "tables.publisher: spark" in caught.value.what
        assert "pyspark==4.2.*" in (caught.value.next_step or "")
    # the user has one, or the platform
    own = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"}
    require_delta(session("4.3.0", **own), "x")
    require_delta(None, "x", own)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "20.0")
    require_delta(session("4.3.0"), "x")


def test_declarative_pipelines_are_refused_by_name(pyspark_is: Any) -> None:
    pyspark_is("4.0.5")
    with pytest.raises(SetupError, match=r"need Spark 4\.1 or newer"):
        require_pipelines()
    pyspark_is("4.1.0")
    require_pipelines()


def test_the_version_is_known_without_an_import_and_without_an_installer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark")
    assert pyspark_version() == importlib.metadata.version("pyspark")
    assert "pyspark" not in sys.modules

    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    # a platform's PySpark, which no installer has recorded
    platform = SimpleNamespace(__version__="4.0.0+platform")
    monkeypatch.setitem(sys.modules, "pyspark.version", cast(Any, platform))
    monkeypatch.setitem(sys.modules, "pyspark", cast(Any, SimpleNamespace(__version__="4.0.1")))
    assert pyspark_version() == "4.0.1"
