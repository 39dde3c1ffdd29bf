"""One update of a declarative project, as a process: a server, and Spark's own program as client.

`spark-pipelines run` is a JVM that starts a Python program that starts a second JVM, whose port is
fixed. Here the same Python program speaks to a server of this process, with the connectors, a
free port on loopback, and a token that nobody else knows. With a remote address there is no server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.pipelines.assumed import VARIABLE
from distributary.pipelines.outcome import failure
from distributary.pipelines.project import Project, find_project, require_extra
from distributary.run.session import new_log_file, spark_session
from distributary.run.spark_conf import SparkSettings
from distributary.supervise.tether import hold_tether

_LINES = 200
_STOPPED = 143
_DATABASE = re.compile(r"[A-Za-z0-9_]+")


def server_conf(project: Project) -> dict[str, str]:
    """What a server is started with: Spark's own defaults for the project's folder, and Delta."""
    folder = project.folder
    store = f"jdbc:derby:;databaseName={folder / 'metastore_db'};create=true"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": store,
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={os.devnull}",
        # a table that names its format cannot be updated a second time with Delta
        "spark.sql.sources.default": "delta",
        # trying again is the supervisor's business, with new columns if there are any
        "spark.sql.pipelines.maxFlowRetryAttempts": "0",
        **project.configuration,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }


@contextmanager
def serving(project: Project, *, master: str, log: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server while it is needed: its address, and the settings that clients may still set."""
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex(32)
    settings = SparkSettings(
        master=master, conf=server_conf(project), log_file=log, short_lived=True
    )
    spark = spark_session(settings, app_name=project.name)
    try:
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


def update(project: Project, *, master: str, remote: str | None, verb: str = "run") -> None:
    """One update; raises what it failed with."""
    require_extra()
    os.chdir(project.folder)
    with tempfile.TemporaryDirectory(prefix="distributary-") as scratch:
        book, log = Path(scratch, "assumed.jsonl"), None
        if remote is not None:
            code, lines = _client(project, remote, project.configuration, book, verb)
        else:
            log = new_log_file()
            with serving(project, master=master, log=log) as (address, settings):
                code, lines = _client(project, address, settings, book, verb)
        if code:
            raise failure(lines, book, project=project.name, log=log)


def _client(
    project: Project, address: str, settings: Mapping[str, str], book: Path, verb: str
) -> tuple[int, list[str]]:
    """Spark's own program; its exit code, and the last that it said."""
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
    """One update, told as the supervisor wants to hear it."""
    parser = argparse.ArgumentParser(prog="distributary.pipelines.spark_update")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--remote")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("spec", type=Path)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_STOPPED))
    verb = "dry-run" if given.dry_run else "run"
    try:
        update(find_project(given.spec), master=given.master, remote=given.remote, verb=verb)
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
    sys.exit(main())
