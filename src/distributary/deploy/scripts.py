"""A script that starts the pipeline with `spark-submit`, its Python packages sent along."""

from __future__ import annotations

import os
import pprint
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from distributary.config.deploy import Airflow, SparkSubmit
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.launcher import LAUNCHER
from distributary.deploy.package import PYTHON_IN_ARCHIVE
from distributary.deploy.pipeline_file import Installable

NAME = "spark-submit"
UNPACKED = "environment"
"""The folder, in an executor's working directory, into which Spark unpacks the archive."""

_CONNECTORS = (
    "from distributary.spark.jars import ensure_connectors; "
    'print(",".join(map(str, ensure_connectors())))'
)
# Spark's own scripts look for it in whichever Python is found first
_HOME = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
_SCRIPT = """\
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
    return _SCRIPT.format(
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


# A DAG file for Apache Airflow 2 and 3: one task, which runs the pipeline and ends.

AIRFLOW_NAME = "airflow"

_DAG = '''\
"""Pipeline {name}: takes what is there and ends."""

from __future__ import annotations

import signal
import subprocess
from datetime import datetime, timedelta, timezone

try:
    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 2
    from airflow import DAG
    from airflow.exceptions import AirflowException, AirflowFailException
    from airflow.operators.python import PythonOperator

# not a shell line, and not a template: names with spaces or braces mean nothing here
COMMAND = {command}
STOP_SECONDS = 300


def run_pipeline() -> None:
    """Runs the command; a mistake in the pipeline file is final, anything else is tried again."""
    process = subprocess.Popen(COMMAND)
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            # the task was stopped: the batch under way may end
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if code == 2:
        raise AirflowFailException("the pipeline file is wrong: see the lines above")
    if code:
        raise AirflowException(f"distributary ended with {{code}}")


with DAG(
    dag_id={dag_id},
    description={description},
    schedule={schedule},
    start_date=datetime(2024, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={{
        "retries": {retries},
        "retry_delay": timedelta(seconds={retry_seconds}),
    }},
    tags={tags},
) as dag:
    PythonOperator(task_id="run", python_callable=run_pipeline)
'''


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
    return _DAG.format(
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
