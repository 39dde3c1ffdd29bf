"""A DAG file for Apache Airflow 2 and 3: one task, which runs the pipeline and ends."""

from __future__ import annotations

import os
import pprint
from pathlib import Path

from distributary.config.deploy import Airflow
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.pipeline_file import Installable

NAME = "airflow"

_TEXT = '''\
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
        NAME,
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
    return _TEXT.format(
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
