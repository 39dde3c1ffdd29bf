"""Targets that are files of another program: spark-submit, Airflow, systemd."""

from __future__ import annotations

import os
import pprint
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from distributary.config.deploy import Airflow, SparkSubmit, Systemd
from distributary.deploy.file_targets import Artifact, FileTarget, template
from distributary.deploy.pipeline_file import Installable
from distributary.errors import DeployError, ErrorCode
from distributary.spark.packages import PYTHON_OF_WORKERS, UNPACKED
from distributary.spark.versions import NEEDED, VERSIONS

NAME = "spark-submit"
PIPELINE_FILE = "pipeline.yaml"
"""The name of the pipeline file beside the script: its references, without comments."""


def spark_submit_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with the files of `install --target spark-submit`."""
    settings = pipeline.deploy.spark_submit or SparkSubmit()
    pipeline.refuse_clear_secrets(to="a file beside the script")
    folder = (out or Path(f"{pipeline.name}-spark-submit")).absolute()
    script = folder / "submit.sh"
    # the script finds Python by the command on the path, on whichever machine it runs
    python = "" if shutil.which("distributary") else f"DRIVER_PYTHON={shlex.quote(sys.executable)} "
    package = f"distributary package {shlex.quote(str(folder / settings.archive))}"
    make = () if settings.environment == "workers" else (package,)
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        (
            Artifact(script, submit_script(pipeline, settings), mode=0o755),
            Artifact(folder / "launch.py", template("launch.py.txt")),
            Artifact(folder / PIPELINE_FILE, pipeline.shared_text),
            Artifact(folder / "log4j2.properties", template("log4j2.properties")),
        ),
        ("*.sh", "*.py", "*.yaml", "*.properties"),
        next_steps=(*make, f"{python}{shlex.quote(str(script))}"),
    )


def submit_script(pipeline: Installable, settings: SparkSubmit) -> str:
    """Return the script, with every word quoted."""
    options = "\n".join(f"  {line} \\" for line in _options(pipeline, settings))
    return template(
        "submit.sh",
        options=options,
        file=PIPELINE_FILE,
        versions="|".join(VERSIONS),
        needed=NEEDED,
    )


def _options(pipeline: Installable, settings: SparkSubmit) -> Iterator[str]:
    yield f"--master {shlex.quote(settings.master or pipeline.master)}"
    yield f"--name {shlex.quote(pipeline.name)}"
    yield '--jars "$jars"'
    yield '--conf spark.pyspark.driver.python="$python"'
    if settings.environment == "archive":
        yield f"--archives {_archive(settings)}#{UNPACKED}"
        yield f"--conf spark.pyspark.python={PYTHON_OF_WORKERS}"
    for name, value in settings.conf.items():
        yield f"--conf {shlex.quote(f'{name}={value}')}"


def _archive(settings: SparkSubmit) -> str:
    if Path(settings.archive).is_absolute():
        return shlex.quote(settings.archive)
    # the script itself determines its folder
    return f'"$here"/{shlex.quote(settings.archive)}'


# A DAG file for Apache Airflow 2 and 3: one task, which runs the pipeline and ends.

AIRFLOW_NAME = "airflow"


def airflow_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with the file of `install --target airflow`."""
    settings = pipeline.deploy.airflow or Airflow()
    folder = (out or dags_folder(settings)).absolute()
    # pipeline names are safe as file names, and two pipelines never share one
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
    """Return the folder of DAG files: from the pipeline file, Airflow's own variable, or `dags`."""
    if settings.folder is not None:
        return Path(settings.folder)
    home = os.environ.get("AIRFLOW_HOME")
    return Path(home, "dags") if home else Path("dags")


def dag_file(pipeline: Installable, settings: Airflow) -> str:
    """Return the text of the DAG file, with values as Python literals."""
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


# A service of this machine: one unit, and a timer if runs are scheduled.

SYSTEM_UNITS = Path("/etc/systemd/system")
STOP_SECONDS = 300
"""The time in which a running batch must end."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
# a JVM generates code that it runs: MemoryDenyWriteExecute would end it
_EVERYWHERE = (
    "NoNewPrivileges=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
# these need rights that a user's own service manager lacks
_SYSTEM_ONLY = (
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "PrivateDevices=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "CapabilityBoundingSet=",
)


def systemd_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with the files of `install --target systemd`."""
    settings = pipeline.deploy.systemd or Systemd()
    folder = (out or unit_folder(user=settings.user)).absolute()
    name = unit_name(pipeline.name, settings)
    artifacts = [Artifact(folder / f"{name}.service", service_unit(pipeline, settings))]
    if settings.schedule is not None:
        artifacts.append(Artifact(folder / f"{name}.timer", timer_unit(pipeline.name, settings)))
    control = "systemctl --user" if settings.user else "systemctl"
    started = f"{name}.timer" if settings.schedule is not None else f"{name}.service"
    secrets = settings.environment_file
    return FileTarget(
        "systemd",
        pipeline.name,
        folder,
        tuple(artifacts),
        ("*.service", "*.timer"),
        next_steps=(
            *([f"chmod 0600 {shlex.quote(secrets)}"] if secrets else []),
            f"{control} daemon-reload",
            f"{control} enable --now {started}",
            *(["loginctl enable-linger"] if settings.user else []),
        ),
        last_steps=(f"{control} disable --now {started}", f"{control} daemon-reload"),
    )


def unit_folder(*, user: bool) -> Path:
    """Return the folder in which systemd looks for units of administrators or users."""
    return platformdirs.user_config_path("systemd") / "user" if user else SYSTEM_UNITS


def unit_name(pipeline: str, settings: Systemd) -> str:
    """Return the unit's name without its suffix."""
    return settings.name or f"distributary-{pipeline}"


def service_unit(pipeline: Installable, settings: Systemd) -> str:
    """Return the unit of the service, which stays, or which a timer starts."""
    timed = settings.schedule is not None
    wanted = "default.target" if settings.user else "multi-user.target"
    unit = [
        f"Description=Distributary pipeline {pipeline.name}",
        "Wants=network-online.target",
        "After=network-online.target",
        # a failing service is retried for ever, at a fixed pace
        "StartLimitIntervalSec=0",
    ]
    folder, secrets = settings.working_directory or str(Path.cwd()), settings.environment_file
    _refuse_line_breaks(str(pipeline.path), folder, secrets or "", sys.executable)
    service = [
        f"Type={'oneshot' if timed else 'exec'}",
        f"ExecStart={' '.join(map(_word, _command(pipeline, settings)))}",
        f"WorkingDirectory={_specifiers(folder)}",
        *([f"User={settings.run_as}"] if settings.run_as else []),
        # output goes to the journal line by line, not when a buffer is full
        "Environment=PYTHONUNBUFFERED=1",
        *([f"EnvironmentFile={_specifiers(secrets)}"] if secrets else []),
        "Restart=on-failure",
        "RestartSec=15",
        # a mistake in the file is not fixed by retries
        "RestartPreventExitStatus=2",
        "SuccessExitStatus=143",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_SECONDS}",
        *([f"MemoryMax={settings.memory_max}"] if settings.memory_max else []),
        *_EVERYWHERE,
        *(_SYSTEM_ONLY if not settings.user else ()),
    ]
    install = [] if timed else ["", "[Install]", f"WantedBy={wanted}"]
    return "\n".join(["[Unit]", *unit, "", "[Service]", *service, *install]) + "\n"


def timer_unit(pipeline: str, settings: Systemd) -> str:
    """Return the timer of a service that ends by itself; a missed run is made up for."""
    return f"""\
[Unit]
Description=Runs of Distributary pipeline {pipeline}

[Timer]
OnCalendar={settings.schedule}
Persistent=true
RandomizedDelaySec=5

[Install]
WantedBy=timers.target
"""


def _command(pipeline: Installable, settings: Systemd) -> list[str]:
    # -P: Python must not import from the working folder
    program = [sys.executable, "-P", "-m", "distributary"]
    if settings.schedule is not None:
        return [*program, "run", str(pipeline.path), "--available-now"]
    listen = ["--listen", settings.listen] if settings.listen else []
    return [*program, "up", str(pipeline.path), "--log-format", "json", *listen]


def _refuse_line_breaks(*paths: str) -> None:
    """Raise DeployError for a path that would continue as another setting of the unit."""
    for path in paths:
        if any(character < " " or character == "\x7f" for character in path):
            raise DeployError(
                "a path with a line break or another control character cannot be in a unit",
                code=ErrorCode.DEPLOY_UNFIT,
                where="systemd",
                evidence=repr(path[:200]),
                next_step="rename the file or the folder",
            )


def _word(text: str) -> str:
    """Return one argument, escaped for systemd."""
    escaped = _specifiers(text).replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    quoted = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")
