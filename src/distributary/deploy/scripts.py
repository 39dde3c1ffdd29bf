"""A script that starts the pipeline with `spark-submit`, its Python packages sent along."""

from __future__ import annotations

import os
import pprint
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from distributary.config.deploy import Airflow, SparkSubmit
from distributary.deploy.files import Artifact, FileTarget, template
from distributary.deploy.package import PYTHON_IN_ARCHIVE
from distributary.deploy.pipeline_file import Installable
from distributary.spark.settings import SPARK_VERSION

NAME = "spark-submit"
UNPACKED = "environment"
"""The folder, in an executor's working directory, into which Spark unpacks the archive."""


def spark_submit_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """The files of `install --target spark-submit`."""
    settings = pipeline.deploy.spark_submit or SparkSubmit()
    folder = (out or Path(f"{pipeline.name}-spark-submit")).absolute()
    script = folder / "submit.sh"
    package = f"distributary package {shlex.quote(str(folder / settings.archive))}"
    make = () if settings.environment == "workers" else (package,)
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        (
            Artifact(script, submit_script(pipeline, settings), mode=0o755),
            Artifact(folder / "launch.py", template("launch.py.txt")),
        ),
        ("*.sh", "*.py"),
        next_steps=(*make, shlex.quote(str(script))),
    )


def submit_script(pipeline: Installable, settings: SparkSubmit) -> str:
    """The script; every word in it is quoted."""
    options = "\n".join(f"  {line} \\" for line in _options(pipeline, settings))
    return template(
        "submit.sh",
        folder=shlex.quote(str(Path.cwd())),
        python=shlex.quote(sys.executable),
        options=options,
        file=shlex.quote(str(pipeline.path)),
        spark=SPARK_VERSION,
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


# A DAG file for Apache Airflow 2 and 3: one task, which runs the pipeline and ends.

AIRFLOW_NAME = "airflow"


def airflow_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """The file of `install --target airflow`."""
    settings = pipeline.deploy.airflow or Airflow()
    folder = (out or dags_folder(settings)).absolute()
    # the name of a pipeline is safe for a file, and two pipelines never share one
    path = folder / f"distributary_{pipeline.name}.py"
    dag = settings.dag_id or pipeline.name
    return FileTarget(
        AIRFLOW_NAME,
        pipeline.name,
        folder,
        (Artifact(path, dag_file(pipeline, settings)),),
        ("*.py",),
        next_steps=(f"airflow dags unpause {dag}",),
        last_steps=(f"airflow dags delete {dag}",),
    )


def dags_folder(settings: Airflow) -> Path:
    """By the file, by Airflow's own variable, or here."""
    if settings.folder is not None:
        return Path(settings.folder)
    home = os.environ.get("AIRFLOW_HOME")
    return Path(home, "dags") if home else Path("dags")


def dag_file(pipeline: Installable, settings: Airflow) -> str:
    """The text of the DAG file; every value is written as Python would write it."""
    file = settings.file or str(pipeline.path)
    return template(
        "dag.py.txt",
        name=pipeline.name,
        command=_pretty([*settings.command, "run", file, "--available-now"]),
        dag_id=_pretty(settings.dag_id or pipeline.name),
        description=_pretty(f"Distributary pipeline {pipeline.name}"),
        schedule=_pretty(settings.schedule),
        retries=settings.retries,
        retry_seconds=settings.retry_wait.total_seconds(),
        tags=_pretty(["distributary", *settings.tags]),
    )


def _pretty(value: object) -> str:
    return pprint.pformat(value, width=10_000)
