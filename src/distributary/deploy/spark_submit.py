"""A script that starts the pipeline with `spark-submit`, its Python packages sent along."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from distributary.config.deploy import SparkSubmit
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.launcher import LAUNCHER
from distributary.deploy.package import PYTHON_IN_ARCHIVE
from distributary.deploy.pipeline_file import Installable

NAME = "spark-submit"
UNPACKED = "environment"
"""The folder, in an executor's working directory, into which Spark unpacks the archive."""

_CONNECTORS = (
    "from distributary.run.connectors import ensure_connectors; "
    'print(",".join(map(str, ensure_connectors())))'
)
# Spark's own scripts look for it in whichever Python is found first
_HOME = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
_TEXT = """\
#!/bin/sh
# runs the pipeline once: takes what is there and ends; further arguments go to spark-submit
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd {folder}
# the JVM connectors, fetched once into the user's cache
jars=$({python} -c '{connectors}')
export SPARK_HOME="${{SPARK_HOME:-$({python} -c '{home}')}}"
exec "$SPARK_HOME/bin/spark-submit" \\
{options}
  "$@" \\
  "$here/{launcher}" run {file} --available-now
"""


def spark_submit_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """The files of `install --target spark-submit`."""
    settings = pipeline.deploy.spark_submit or SparkSubmit()
    folder = (out or Path(f"{pipeline.name}-spark-submit")).absolute()
    script = folder / "submit.sh"
    make = () if settings.environment == "workers" else (_packaging(folder, settings),)
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        (
            Artifact(script, submit_script(pipeline, settings), mode=0o755),
            Artifact(folder / "launch.py", LAUNCHER),
        ),
        ("*.sh", "*.py"),
        next_steps=(*make, shlex.quote(str(script))),
    )


def submit_script(pipeline: Installable, settings: SparkSubmit) -> str:
    """The script; every word in it is quoted."""
    options = "\n".join(f"  {line} \\" for line in _options(pipeline, settings))
    return _TEXT.format(
        folder=shlex.quote(str(Path.cwd())),
        python=shlex.quote(sys.executable),
        connectors=_CONNECTORS,
        home=_HOME,
        options=options,
        launcher="launch.py",
        file=shlex.quote(str(pipeline.path)),
    )


def _options(pipeline: Installable, settings: SparkSubmit) -> Iterator[str]:
    yield f"--master {shlex.quote(settings.master or pipeline.master)}"
    yield f"--name {shlex.quote(pipeline.name)}"
    yield '--jars "$jars"'
    yield f"--conf spark.pyspark.driver.python={shlex.quote(sys.executable)}"
    if settings.environment == "archive":
        yield f"--archives {_archive(settings)}#{UNPACKED}"
        yield f"--conf spark.pyspark.python=./{UNPACKED}/{PYTHON_IN_ARCHIVE}"
    for name, value in settings.conf.items():
        yield f"--conf {shlex.quote(f'{name}={value}')}"


def _archive(settings: SparkSubmit) -> str:
    if Path(settings.archive).is_absolute():
        return shlex.quote(settings.archive)
    # the folder is known when the script runs
    return f'"$here"/{shlex.quote(settings.archive)}'


def _packaging(folder: Path, settings: SparkSubmit) -> str:
    return f"distributary package {shlex.quote(str(folder / settings.archive))}"
