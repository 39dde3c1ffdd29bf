"""Updates of a declarative project, as a process: a server and Spark's program as client.

`spark-pipelines run` is a JVM that starts a Python program that starts a second JVM with a fixed
port. Here the same Python program connects to a server of this process, which has the connectors, a
free port on loopback, and a secret token. With a remote address there is no server.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from distributary import errors
from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    SchemaGrewError,
    SetupError,
)
from distributary.model.names import printable
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.pipelines.known_types import VARIABLE, grown
from distributary.spark.session import new_log_file, spark_session
from distributary.spark.settings import SparkSettings
from distributary.spark.versions import require_delta, require_pipelines
from distributary.store.base import local_path
from distributary.supervise.process import hold_tether
from distributary.threads import end_process

# How the end of an update is classified, by the printed output and the registry's current types.

_OURS = re.compile(r"^distributary\.errors\.(\w+): ([A-Z_]+): (.*)", re.M)
_MOST = 500
# the output of Spark's program before it reads definitions, and when it has read all of them
_READING = ("Registering graph elements...", "Importing ", "Registering SQL file ")
_READ = "Starting run..."
# the server ended, which is not the fault of a definition
_CONNECTION = ("pyspark.errors.exceptions.connect.SparkConnectGrpcException", "grpc.")


def failure(
    lines: Sequence[str], book: Path, *, project: str, log: Path | None = None
) -> DistributaryError:
    """Return the reason why an update failed, from the last output and the assumed columns."""
    ours = _raised(lines)
    if ours is not None:
        return ours
    last = _last_words(lines)[:_MOST]
    if _defining(lines) and not last.startswith(_CONNECTION):
        return ConfigError(
            "a definition of the project failed",
            where=project,
            evidence=last,
            next_step="fix it; the lines before this one show where it is",
        )
    news = grown(book)
    if news:
        return SchemaGrewError(
            "the schema grew during the update",
            where=project,
            evidence="; ".join(news)[:_MOST],
            next_step="no record is lost: the next update reads the same records again",
        )
    return DistributaryError(
        "the update failed",
        code=ErrorCode.SPARK_FAILED,
        where=project,
        evidence=last,
        next_step=f"read {log}" if log else "read the log of the Spark Connect server",
    )


def _raised(lines: Sequence[str]) -> DistributaryError | None:
    """Return the DistributaryError with which the project's definitions ended; None without one."""
    text = "\n".join(lines)
    matches = [match for match in _OURS.finditer(text) if match[2] in ErrorCode.__members__]
    if not matches:
        return None
    kind = getattr(errors, matches[-1][1], DistributaryError)
    parts = dict(re.findall(r"^  (at|seen|next): (.*)$", text[matches[-1].end() :], re.M))
    error = kind(matches[-1][3], code=ErrorCode(matches[-1][2]))
    error.where, error.evidence = parts.get("at", ""), parts.get("seen", "")
    error.next_step = parts.get("next", "")
    return error if isinstance(error, DistributaryError) else None


def _defining(lines: Sequence[str]) -> bool:
    """Return whether the program ended while it read the definitions."""
    output = "\n".join(lines)
    return _READ not in output and any(words in output for words in _READING)


def _last_words(lines: Sequence[str]) -> str:
    """Return the first line of the last exception, or else the last line."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("Traceback "):
            errors = [line for line in lines[number + 1 :] if line and not line.startswith(" ")]
            if errors:
                return errors[0]
    return next((line for line in reversed(lines) if line.strip()), "")


# The folder of a declarative project, as its spec file describes it.

SPEC_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_NEEDED = ("grpc", "grpc_status", "yaml", "zstandard")
_COPY = ".spark-pipeline.update-{number}.yml"
_PROJECT_MOST = 300


@dataclass(frozen=True, slots=True)
class Project:
    """A spec file that was read."""

    spec: Path
    """Absolute."""
    name: str
    document: Mapping[str, Any] = field(repr=False)
    """The whole content of the file."""

    @property
    def folder(self) -> Path:
        """Return the folder with the definitions, at which relative paths start."""
        return self.spec.parent

    @property
    def configuration(self) -> dict[str, str]:
        """Return the settings of Spark; they may contain secrets."""
        return dict(self.document.get("configuration") or {})

    def effective(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Return the spec with these settings, and with an absolute address as storage."""
        storage = str(self.document["storage"])
        local = local_path(storage)
        if local is not None and "://" not in storage:
            storage = (self.folder / storage.removeprefix("file:")).resolve().as_uri()
        return {**self.document, "storage": storage, "configuration": dict(settings)}

    @contextmanager
    def written(self, document: Mapping[str, Any]) -> Iterator[Path]:
        """Write a spec file beside the project's own while the context lasts."""
        for left in self.folder.glob(_COPY.format(number="*")):
            # a file of an update that was killed
            left.unlink(missing_ok=True)
        place = self.folder / _COPY.format(number=os.getpid())
        try:
            # it may hold secrets
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                YAML(typ="safe", pure=True).dump(dict(document), file)
            yield place
        finally:
            place.unlink(missing_ok=True)


def find_project(path: Path) -> Project:
    """Return the project in a folder, or of a spec file; ConfigError if there is none."""
    candidates = [path / name for name in SPEC_FILES] if path.is_dir() else [path]
    files = [candidate for candidate in candidates if candidate.is_file()]
    if len(files) != 1:
        raise ConfigError(
            "the folder has two spec files" if files else "there is no declarative project here",
            code=ErrorCode.CONFIG_INVALID if files else ErrorCode.NOT_FOUND,
            where=printable(str(path)),
            evidence=f"looked for {' and '.join(candidate.name for candidate in candidates)}"[
                :_PROJECT_MOST
            ],
            next_step="name a folder with one spark-pipeline.yml, or the file itself",
        )
    spec = files[0].absolute()
    document = _read(spec)
    return Project(spec, printable(document["name"]), document)


def require_extra() -> None:
    """Raise SetupError unless PySpark has pipelines and all packages for its client are there."""
    require_pipelines()
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            "declarative pipelines need packages that are not installed",
            code=ErrorCode.EXTRA_MISSING,
            evidence=f"cannot import {', '.join(missing)}",
            next_step="pip install 'distributary[pipelines]'",
        )


def _read(spec: Path) -> dict[str, Any]:
    try:
        document = YAML(typ="safe", pure=True).load(spec.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the spec file cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=printable(str(spec)),
            evidence=type(error).__name__,
        ) from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            "the spec file is not YAML",
            code=ErrorCode.CONFIG_SYNTAX,
            where=f"{printable(str(spec))}:{mark.line + 1}" if mark else printable(str(spec)),
            next_step="fix it at the line named",
        ) from error
    problem = _problem(document)
    if problem:
        raise ConfigError(
            f"the spec file {problem}",
            where=printable(str(spec)),
            next_step="read the page Declarative pipelines of the documentation",
        )
    return dict(document)


def _problem(document: object) -> str:
    if not isinstance(document, dict):
        return "is not a mapping"
    for key in ("name", "storage"):
        if not isinstance(document.get(key), str) or not document[key].strip():
            return f"needs {key}, as text"
    settings = document.get("configuration") or {}
    if not isinstance(settings, dict):
        return "needs a mapping as configuration"
    if not all(isinstance(part, str) for pair in settings.items() for part in pair):
        return "has a setting in configuration that is not text: put it in quotes"
    return ""


_LINES = 200
_OWN = "distributary-"
_STOPPED = 143
_DATABASE = re.compile(r"[A-Za-z0-9_]+")


def server_conf(project: Project) -> dict[str, str]:
    """Return the settings of the server: Spark's defaults for the project's folder, and Delta."""
    folder = project.folder
    store = f"jdbc:derby:;databaseName={folder / 'metastore_db'};create=true"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": store,
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={os.devnull}",
        # a table that names its format cannot be updated a second time with Delta
        "spark.sql.sources.default": "delta",
        # the supervisor retries, with new columns if there are any
        "spark.sql.pipelines.maxFlowRetryAttempts": "0",
        **project.configuration,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }


@contextmanager
def serving(project: Project, *, master: str, log: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server while the context lasts.

    Yields its address and the settings that clients may set.
    """
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex(32)
    settings = SparkSettings(
        master=master, conf=server_conf(project), log_file=log, short_lived=True
    )
    spark = spark_session(settings, app_name=project.name)
    try:
        require_delta(spark, "a declarative pipeline")
        database = project.document.get("database") or project.document.get("schema")
        if not project.document.get("catalog") and _DATABASE.fullmatch(str(database or "")):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to ask for the port
        service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = int(getattr(service, "MODULE$").localPort())
        free = {k: v for k, v in project.configuration.items() if spark.conf.isModifiable(k)}
        yield f"sc://localhost:{port}", free
    finally:
        spark.stop()


def update(
    project: Project,
    *,
    master: str,
    remote: str | None,
    verb: str = "run",
    pause: float | None = None,
) -> None:
    """Run one update; with `pause`, one after the other with so many seconds between two.

    All use one server, and each reads the definitions again. Raises the first failure.
    """
    require_extra()
    os.chdir(project.folder)
    with ExitStack() as stack:
        book, log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_OWN))), None
        address, settings = remote, project.configuration
        if address is None:
            log = new_log_file()
            server = serving(project, master=master, log=log)
            address, settings = stack.enter_context(server)
        for number in count(1):
            assumed = book / f"assumed-{number}.jsonl"
            code, lines = _client(project, address, settings, assumed, verb)
            if code:
                raise failure(lines, assumed, project=project.name, log=log)
            assumed.unlink(missing_ok=True)
            if pause is None:
                return
            _tell(project, f"update {number} has read what there was; the next one in {pause:g} s")
            time.sleep(pause)


def _client(
    project: Project, address: str, settings: Mapping[str, str], book: Path, verb: str
) -> tuple[int, list[str]]:
    """Run Spark's own program; returns its exit code and its last lines."""
    import pyspark

    program = Path(pyspark.__file__).with_name("pipelines") / "cli.py"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_GATEWAY")}
    environ |= {"SPARK_REMOTE": address, VARIABLE: str(book), "PYTHONUNBUFFERED": "1"}
    last: deque[str] = deque(maxlen=_LINES)
    with project.written(project.effective(settings)) as spec:
        process = subprocess.Popen(  # noqa: S603 - a program of PySpark's
            [sys.executable, "-P", str(program), verb, "--spec", str(spec)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            for line in process.stdout or ():
                last.append(line.rstrip("\n"))
                _tell(project, last[-1])
            return process.wait(), list(last)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _tell(project: Project, text: str) -> None:
    line = LogLine(message=text, event="output", level="INFO", pipeline=project.name)
    print(spell(line, LogFormat.JSON), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one update, or update after update, and report to the supervisor."""
    parser = argparse.ArgumentParser(prog="distributary.pipelines.update")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--pause", type=float, help="seconds between two updates; one if left out")
    parser.add_argument("spec", type=Path)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_STOPPED))
    verb = "dry-run" if given.dry_run else "run"
    try:
        project = find_project(given.spec)
        remote = os.environ.get("SPARK_REMOTE") or None
        update(project, master=given.master, remote=remote, verb=verb, pause=given.pause)
    except DistributaryError as error:
        return _ended(error)
    except OSError as error:
        text = error.strerror or type(error).__name__
        return _ended(
            DistributaryError("the update failed", code=ErrorCode.BATCH_FAILED, evidence=text)
        )
    print(json.dumps({"version": 1, "stopped": "done"}))
    return 0


def _ended(error: DistributaryError) -> int:
    print(json.dumps({"version": 1, "error": error.as_dict()}))
    return error.exit_code


if __name__ == "__main__":
    hold_tether()
    try:
        ended = main()
    except SystemExit as stopped:
        ended = stopped.code if isinstance(stopped.code, int) else 1
    end_process(ended)
