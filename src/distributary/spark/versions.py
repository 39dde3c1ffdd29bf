"""The versions of Spark that the engine runs on, and what each of them lacks.

A version is known by its first two numbers: `4.1` for `4.1.1` and for `4.1.0-amzn-0`. The folder
`jvm/` has a lock of connectors for each of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from distributary.errors import ErrorCode, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS = ("4.0", "4.1", "4.2", "4.3")
"""The versions of Spark that the engine runs on, oldest first."""
NEEDED = f"{VERSIONS[0]} to {VERSIONS[-1]}"
"""The versions of Spark that the engine runs on, for messages."""

_WITHOUT_DELTA = frozenset({"4.3"})
"""Versions for which Delta Lake has no release; tables are written without it."""
_WITHOUT_PIPELINES = frozenset({"4.0"})
"""Versions without declarative pipelines."""

_MINOR = re.compile(r"\d+\.\d+")
_CORE = re.compile(r"spark-core_[0-9.]+-(.+)\.jar")
_INSTALL = f"pip install 'pyspark>={VERSIONS[0]},<4.{int(VERSIONS[-1].partition('.')[2]) + 1}'"


def minor_of(version: str) -> str:
    """Return the first two numbers of a version; empty if it does not begin with them."""
    match = _MINOR.match(version)
    return match[0] if match else ""


def is_supported(version: str) -> bool:
    """Return whether the engine runs on a version of Spark."""
    return minor_of(version) in VERSIONS


def pyspark_version() -> str:
    """Return the version of PySpark, without importing it if possible; empty without PySpark."""
    loaded = sys.modules.get("pyspark")
    if loaded is not None:
        # Under spark-submit it is that of `SPARK_HOME`, whichever one pip has installed.
        return str(loaded.__version__)
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        # A platform's own PySpark is a folder on the path, which no installer has recorded.
        try:
            from pyspark.version import __version__
        except ImportError:
            return ""
        return str(__version__)


def spark_version() -> str:
    """Return the version of the Spark that starts here: that of `SPARK_HOME`, or PySpark's own."""
    home = os.environ.get("SPARK_HOME")
    return (spark_in(Path(home)) if home else "") or pyspark_version()


def spark_in(home: Path) -> str:
    """Return the version of an installed Spark; empty if it cannot be determined."""
    matches = (_CORE.fullmatch(path.name) for path in home.glob("jars/spark-core_*.jar"))
    return next((match[1] for match in matches if match), "")


def require_supported() -> str:
    """Return the version of the Spark that starts here, or raise SetupError if it is not ours."""
    version, home = spark_version(), os.environ.get("SPARK_HOME")
    if not is_supported(version):
        where = f"SPARK_HOME={home}" if home else "PySpark"
        raise other_version(version, where=where, next_step=_INSTALL)
    return version


def require_installed() -> None:
    """Raise SetupError if PySpark cannot start its Spark, or that of `SPARK_HOME`."""
    version, own = require_supported(), pyspark_version()
    if minor_of(version) != minor_of(own):
        raise SetupError(
            "SPARK_HOME has another version of Spark than PySpark",
            code=ErrorCode.SPARK_FAILED,
            where=f"SPARK_HOME={os.environ.get('SPARK_HOME')}",
            evidence=f"SPARK_HOME has Spark {version}, PySpark is {own}",
            next_step=f"unset SPARK_HOME, or pip install 'pyspark=={minor_of(version)}.*'",
        )


def require_session(spark: SparkSession, where: str) -> SparkSession:
    """Return a session that was started elsewhere, if its version of Spark is supported.

    Raises SetupError for another version, and for a server that is older than this client.
    """
    version = version_of(spark)
    if not is_supported(version):
        raise other_version(version, where=where, next_step=f"use a Spark of version {NEEDED}")
    own = minor_of(pyspark_version())
    if _order(minor_of(version)) < _order(own):
        raise SetupError(
            "the session is older than PySpark",
            code=ErrorCode.SPARK_FAILED,
            where=where,
            evidence=f"the session has Spark {version}, PySpark is {pyspark_version()}",
            next_step=f"pip install 'pyspark=={minor_of(version)}.*'",
        )
    return spark


def version_of(spark: SparkSession) -> str:
    """Return the version of a session's Spark; PySpark's own for tasks without a JVM."""
    return str(getattr(spark, "version", "") or pyspark_version())


def other_version(version: str, *, where: str, next_step: str) -> SetupError:
    """Return the error for a Spark that the engine does not run on."""
    return SetupError(
        f"the engine runs on Spark {NEEDED}",
        code=ErrorCode.SPARK_FAILED,
        where=where,
        evidence=f"found Spark {version}" if version else "found no Spark",
        next_step=next_step,
    )


def has_delta(version: str) -> bool:
    """Return whether Delta Lake has a release for a version of Spark."""
    return minor_of(version) not in _WITHOUT_DELTA


def require_delta(
    spark: SparkSession | None, purpose: str, options: Mapping[str, str] = {}
) -> None:
    """Raise SetupError if a session of Spark has no Delta Lake, naming what needs it.

    Without a session, the one is meant that would start here with these options.
    """
    version = spark_version() if spark is None else version_of(spark)
    if has_delta(version) or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return
    conf = options if spark is None else getattr(spark, "conf", options)
    if "delta" in str(conf.get("spark.sql.extensions", "")):
        # The user has found a Delta Lake for this Spark.
        return
    newest = [one for one in VERSIONS if one not in _WITHOUT_DELTA][-1]
    raise SetupError(
        f"{purpose} needs Delta Lake inside Spark, which has no release for Spark "
        f"{minor_of(version)}",
        code=ErrorCode.CONNECTORS_MISSING,
        where=f"Spark {version}",
        next_step=f"pip install 'pyspark=={newest}.*', or do without: tables are written, merged "
        "and read without Delta's Spark library",
    )


def require_pipelines() -> None:
    """Raise SetupError if PySpark has no declarative pipelines."""
    version = pyspark_version()
    if minor_of(version) not in _WITHOUT_PIPELINES:
        return
    oldest = next(one for one in VERSIONS if one not in _WITHOUT_PIPELINES)
    raise SetupError(
        f"declarative pipelines need Spark {oldest} or newer",
        code=ErrorCode.SPARK_FAILED,
        where="PySpark",
        evidence=f"PySpark {version} has no pyspark.pipelines",
        next_step=f"pip install 'pyspark>={oldest}'",
    )


def _order(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split("."))) if minor else ()
