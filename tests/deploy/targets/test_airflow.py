"""The DAG file, imported with stand-ins for Airflow 2 and 3, each of which is large to install."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from distributary.config.deploy import Airflow
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.scripts import airflow_target, dag_file, dags_folder

Make = Callable[..., Installable]


class AirflowException(Exception):
    pass


class AirflowFailException(AirflowException):
    pass


class Dag:
    made: ClassVar[list[Dag]] = []

    def __init__(self, **given: Any) -> None:
        self.given, self.tasks = given, list[dict[str, Any]]()
        Dag.made.append(self)

    def __enter__(self) -> Dag:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def operator(**given: Any) -> None:
    Dag.made[-1].tasks.append(given)


def module(name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(content)
    return made


EXCEPTIONS = {
    "AirflowException": AirflowException,
    "AirflowFailException": AirflowFailException,
}
AIRFLOW_3 = {
    "airflow": {},
    "airflow.sdk": {"DAG": Dag},
    "airflow.sdk.exceptions": EXCEPTIONS,
    "airflow.providers": {},
    "airflow.providers.standard": {},
    "airflow.providers.standard.operators": {},
    "airflow.providers.standard.operators.python": {"PythonOperator": operator},
}
AIRFLOW_2 = {
    "airflow": {"DAG": Dag},
    "airflow.exceptions": EXCEPTIONS,
    "airflow.operators": {},
    "airflow.operators.python": {"PythonOperator": operator},
}


@pytest.fixture(params=[AIRFLOW_2, AIRFLOW_3], ids=["airflow 2", "airflow 3"])
def airflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, content in request.param.items():
        monkeypatch.setitem(sys.modules, name, module(name, **content))
    Dag.made.clear()
    yield


def imported(path: Path) -> tuple[types.ModuleType, Dag]:
    spec = importlib.util.spec_from_file_location("installed_dag", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made, Dag.made[-1]


def written(installable: Make, extra: str = "", **given: str) -> Path:
    target = airflow_target(installable(extra, **given), out=Path("dags"))
    target.apply(target.plan())
    return target.artifacts[0].path


def test_the_file_imports_and_says_what_was_asked(airflow: None, installable: Make) -> None:
    extra = """\
deploy:
  airflow:
    dag_id: my-games
    schedule: "0 * * * *"
    retries: 2
    retry_wait: 30s
    command: [/opt/venv/bin/distributary]
    file: /opt/games.yaml
    tags: [team-data]
"""
    made, dag = imported(written(installable, extra))
    assert dag.given["dag_id"] == "my-games"
    assert dag.given["schedule"] == "0 * * * *"
    assert dag.given["max_active_runs"] == 1 and dag.given["catchup"] is False
    assert dag.given["default_args"] == {"retries": 2, "retry_delay": timedelta(seconds=30)}
    assert dag.given["tags"] == ["distributary", "team-data"]
    assert [task["task_id"] for task in dag.tasks] == ["run"]
    command = ["/opt/venv/bin/distributary", "run", "/opt/games.yaml", "--available-now"]
    assert made.COMMAND == command


def test_hostile_names_are_plain_text(airflow: None, installable: Make) -> None:
    name = 'a\'""" {{ x }} {% y %}\\.yaml'
    made, _ = imported(written(installable, file=name))
    assert made.COMMAND[2].endswith(name)


@pytest.mark.parametrize(
    ("code", "error"), [(0, None), (2, AirflowFailException), (75, AirflowException)]
)
def test_a_mistake_in_the_file_is_final(
    airflow: None, installable: Make, code: int, error: type[Exception] | None
) -> None:
    made, dag = imported(written(installable))
    made.COMMAND = [sys.executable, "-c", f"raise SystemExit({code})"]
    run = dag.tasks[0]["python_callable"]
    if error is None:
        run()
        return
    with pytest.raises(AirflowException) as caught:
        run()
    assert type(caught.value) is error


def test_a_stopped_task_ends_its_process_gently(
    airflow: None, installable: Make, monkeypatch: pytest.MonkeyPatch, own_folder: Path
) -> None:
    made, dag = imported(written(installable))
    gone = own_folder / "gone"
    script = (
        "import signal, sys, pathlib\n"
        f"def end(*_): pathlib.Path({str(gone)!r}).write_text('ended'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    real = made.subprocess.Popen

    class Stopped(real):  # type: ignore[valid-type, misc]
        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                assert self.stdout.readline() == b"ready\n"
                self.stdout.close()
                raise KeyboardInterrupt
            return int(super().wait(timeout))

    monkeypatch.setattr(
        made.subprocess, "Popen", lambda command: Stopped(command, stdout=made.subprocess.PIPE)
    )
    made.COMMAND = [sys.executable, "-c", script]
    with pytest.raises(KeyboardInterrupt):
        dag.tasks[0]["python_callable"]()
    assert gone.read_text() == "ended"


def test_where_dag_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    assert dags_folder(Airflow()) == Path("dags")
    monkeypatch.setenv("AIRFLOW_HOME", "/opt/airflow")
    assert dags_folder(Airflow()) == Path("/opt/airflow/dags")
    assert dags_folder(Airflow(folder="/x")) == Path("/x")


def test_no_secret_is_in_the_file(installable: Make) -> None:
    assert "KAFKA" not in dag_file(installable(), Airflow())
