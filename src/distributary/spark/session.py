"""The Spark session: started here, or taken over. Nothing of it is printed to the terminal.

Spark's log goes to the log file; the output of the JVM and of Python workers goes to a file of the
same name that ends in `.out`. Settings that may hold secrets are passed inside the process, and
secret JVM options in a file that only this user may read; on the JVM's command line every user of
the machine could read them.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from distributary.errors import (
    DistributaryError,
    ErrorCode,
    LakeUnavailableError,
    SetupError,
    clean,
)
from distributary.observe.log_format import log_folder, private
from distributary.spark.jars import JVM, Progress, are_locked, ensure_connectors, spark_jars
from distributary.spark.java import archive_options, require_java
from distributary.spark.packages import ensure_archive
from distributary.spark.settings import (
    REQUIRED,
    SparkSettings,
    launch_conf,
    quoted_option,
    secret_options,
    spark_conf,
)
from distributary.spark.sockets import socket_folder
from distributary.spark.versions import (
    has_delta,
    require_installed,
    require_session,
    spark_version,
)
from distributary.store.base import TransferError
from distributary.threads import begun

# The limit of open files: Spark opens hundreds before it reads a record.

_ENOUGH = 65_536
_FEW = 1_024
"""The number of open files below which the JVM may not find its own classes."""
_LONGEST = 300


def raise_limit() -> None:
    """Raise the limit of open files as far as allowed, before the JVM inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a lower limit than they report.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def too_few_files(text: str) -> SetupError | None:
    """Return the error for a failure that means, directly or not, too many open files, or None."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    signs = ["Too many open files"]
    if limit != resource.RLIM_INFINITY and limit < _FEW:
        # For the JVM, an archive that cannot be opened looks like a missing class.
        signs += ["NoClassDefFoundError", "ClassNotFoundException", "ExceptionInInitializerError"]
    lines = [line.strip() for line in text.splitlines() if any(sign in line for sign in signs)]
    if not lines:
        return None
    return SetupError(
        "the limit of open files is too low",
        code=ErrorCode.SPARK_FAILED,
        where=f"limit of this process: {limit:,}",
        evidence=lines[0][:_LONGEST],
        next_step=f"allow {_ENOUGH:,}: `ulimit -n {_ENOUGH}` in the shell that starts it, "
        f"LimitNOFILE={_ENOUGH} in a systemd unit, --ulimit nofile={_ENOUGH} for a container",
        limit=limit,
    )


# The end of the JVM: it belongs to a process group of its own, which a watchdog leads.
# A signal for the group of this process (Ctrl-C in a terminal, `timeout`) must not reach the JVM,
# because the current batch needs it. And the JVM must end with this process, however that ends.
# Spark's own watch, a thread that reads standard input, only works in a responsive JVM; the
# watchdog kills the group if the JVM still exists some seconds after this process has ended.

_WATCHDOG = """
import os, select, signal, sys
parent, jvm, grace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
# a pipe ends when every process that holds its other end has ended
ended = select.select([parent, jvm], [], [])[0]
if jvm not in ended and not select.select([jvm], [], [], grace)[0]:
    os.kill(0, signal.SIGKILL)
"""
_END_SECONDS = 10.0
"""The seconds that a JVM may take to stop Spark and to remove its temporary files."""


_groups: list[JvmGroup] = []
"""The groups of this process, kept until its end so that their watchdogs can be reaped."""


class JvmGroup:
    """The process group of a JVM, and the watchdog in it that ends the JVM with this process."""

    def __init__(self) -> None:
        parent_in, self._held = os.pipe()
        jvm_in, self._jvm_out = os.pipe()
        arguments = (str(parent_in), str(jvm_in), str(_END_SECONDS))
        try:
            self._watchdog = subprocess.Popen(  # noqa: S603 - a program of this module
                [sys.executable, "-I", "-S", "-c", _WATCHDOG, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(parent_in, jvm_in),
                process_group=0,
            )
        except OSError:
            os.close(self._held)
            os.close(self._jvm_out)
            raise
        finally:
            os.close(parent_in)
            os.close(jvm_in)
        _groups.append(self)

    def popen_options(self) -> dict[str, Any]:
        """Return the options of `Popen` that start a process in this group."""
        return {"process_group": self._watchdog.pid, "pass_fds": (self._jvm_out,)}

    def started(self) -> None:
        """Leave the JVM's pipe to the JVM, so that the pipe ends with it."""
        os.close(self._jvm_out)

    def kill(self) -> None:
        """End the JVM and the watchdog at once."""
        # The number cannot belong to other processes: the watchdog is reaped only here.
        if self._watchdog.poll() is None:
            os.killpg(self._watchdog.pid, signal.SIGKILL)


def jvm_has_ended(error: BaseException) -> bool:
    """Return whether a call failed because Spark was shut down or its JVM is gone."""
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError):
        return True
    return isinstance(error, PySparkException | Py4JError) and any(
        sign in str(error) for sign in _SHUT_DOWN
    )


_SHUT_DOWN = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "Answer from Java side is empty",
)

_EVIDENCE_LINES = 8
_MOST_SECONDS = 300.0
"""Seconds in which a started JVM must answer; a loaded machine takes half a minute."""
# The script of spark-submit starts a small JVM first, only to build the real command.
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# The second compiler only pays off after minutes.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
# The concurrent collector only pays off after minutes, and on more than two cores; with 1,000
# tables it lets the heap grow by a third of a gigabyte more, and a batch is no faster.
_SMALL = "-XX:+UseSerialGC"
_starting = threading.Lock()
_CONNECT_PORT = 15002
_EXISTING = "the session of this process"


def spark_session(
    settings: SparkSettings | None = None,
    *,
    app_name: str = "distributary",
    progress: Progress | None = None,
) -> SparkSession:
    """Return the session of this process; start it with these settings if there is none.

    Raises SetupError if Java or the connectors are missing or Spark does not start, and ConfigError
    if a setting contradicts a required one. Under `spark-submit`, its settings override
    Distributary's.
    """
    wanted = settings or SparkSettings()
    with _starting:
        if wanted.remote:
            return _connected(wanted, app_name)
        if is_remote() or "SPARK_REMOTE" in os.environ:
            # On serverless compute, the platform has named the server and chosen its version.
            session = SparkSession.builder.appName(app_name).getOrCreate()
            return require_session(_required(session), "SPARK_REMOTE")
        # PySpark has no public way to check this without starting a session.
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            return require_session(_required(SparkSession.builder.getOrCreate()), _EXISTING)
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return _submitted(wanted, app_name)
        return _started(wanted, app_name, progress)


def begin_session(settings: SparkSettings, *, app_name: str) -> Future[SparkSession]:
    """Start the session of this process in the background.

    The end of the process does not wait for it: the JVM ends with the pipe that it was started
    with.
    """
    session = begun(lambda: spark_session(settings, app_name=app_name), name="distributary-spark")
    begun(lambda: _start_workers(session.result()), name="distributary-workers")
    return session


def _start_workers(session: SparkSession) -> None:
    """Start the Python workers of a local master while the driver determines what to read."""
    # The first batch reports any problem of the workers.
    with suppress(PySparkException, Py4JError, OSError):
        context = session.sparkContext
        if (context.master or "").startswith("local"):
            count = context.defaultParallelism
            context.parallelize(range(count), count).foreachPartition(lambda numbers: None)


def new_log_file() -> Path:
    """Return a new log file for this process in the user's log folder."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return log_folder() / f"spark-{stamp}-{os.getpid()}.log"


def _started(settings: SparkSettings, app_name: str, progress: Progress | None) -> SparkSession:
    require_installed()
    raise_limit()
    java = require_java()
    jars = ensure_connectors(progress)
    log = (settings.log_file or new_log_file()).absolute()
    options = [
        # The JVM's own messages would go to standard output.
        *("-Xlog:disable", "-Xlog:all=error:stderr"),
        f"-Dlog4j2.configurationFile={(JVM / 'log4j2.properties').as_uri()}",
        f"-Ddistributary.log={log}",
        f"-Ddistributary.log.level={settings.log_level}",
        # Otherwise a crashing JVM leaves its report in the working folder.
        f"-XX:ErrorFile={log.with_suffix('.crash')}",
    ]
    if settings.short_lived:
        options.append(_SHORT_LIVED)
    if (settings.short_lived or settings.has_few_cores) and not settings.chooses_collector:
        options.append(_SMALL)
    first = settings.is_local and are_locked()
    if first:
        options += archive_options(java, [spark_jars(), *jars], train=settings.short_lived)
    conf = spark_conf(
        settings,
        app_name=app_name,
        jars=jars,
        jars_first=first,
        java_options=options,
        sockets=socket_folder() if settings.is_local else None,
        delta=has_delta(spark_version()) or any(jar.name.startswith("delta-") for jar in jars),
        archive=ensure_archive(progress) if settings.sends_packages else None,
    )
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif "spark.pyspark.python" in conf:
        # Only the script of spark-submit reads the setting.
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    try:
        with _answered_in_time() as group:
            gateway = _gateway(conf, log, sealed=settings.sealed, group=group)
            context = SparkContext(conf=_as_conf(conf), gateway=gateway)
    except (PySparkException, Py4JError, OSError) as error:
        raise _did_not_start(settings.master, log, error) from error
    # The required settings are among `conf`: checking one of them would load Spark SQL, which most
    # pipelines never use.
    return SparkSession(context)


@contextmanager
def _answered_in_time() -> Iterator[JvmGroup | None]:
    """Provide the process group for a new JVM, and end a JVM that does not answer.

    A JVM with too little memory is alive and silent, and Python would wait forever for its first
    answer. Without a gateway nothing can use the JVM, so it is ended after a failure too.
    """
    if _jvm_exists():
        # A session was stopped in this process: its JVM serves the next session too.
        yield None
        return
    group = JvmGroup()
    watch = threading.Timer(_MOST_SECONDS, group.kill)
    watch.daemon = True
    watch.start()
    try:
        yield group
    except BaseException:
        if not _jvm_exists():
            group.kill()
        raise
    finally:
        watch.cancel()


def _gateway(
    conf: Mapping[str, str], log: Path, *, sealed: frozenset[str], group: JvmGroup | None
) -> Any:
    if group is None:
        return None
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log.touch(0o600)
    hidden = secret_options(conf, sealed=sealed)
    with (
        open(log.with_suffix(".out"), "ab", opener=private) as output,
        options_file(hidden) as file,
    ):
        launch = launch_conf(conf, sealed=sealed, options_file=file)
        try:
            return launch_gateway(  # type: ignore[no-untyped-call]
                _as_conf(launch), {"stdout": output, "stderr": output, **group.popen_options()}
            )
        finally:
            group.started()


@contextmanager
def options_file(options: Sequence[str]) -> Iterator[Path | None]:
    """Write a file of options for `java @FILE`, readable by this user only.

    None without options.
    """
    if not options:
        yield None
        return
    with TemporaryDirectory(prefix="distributary-") as folder:
        path = Path(folder) / "options"
        path.touch(mode=0o600)
        # A line break would end an option, even a quoted one.
        lines = (
            quoted_option(option).replace("\n", "\\n").replace("\r", "\\r") for option in options
        )
        path.write_text("\n".join(lines), "utf-8")
        yield path


def _connected(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return a session on a Spark Connect server; the server's settings stay."""
    builder = SparkSession.builder.remote(settings.remote).appName(app_name)
    for name, value in settings.conf.items():
        builder = builder.config(name, value)
    server = settings.remote.partition(";")[0].rstrip("/")
    try:
        # The client itself would retry for ten minutes.
        parts = urlsplit(server)
        socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), 10).close()
        return require_session(_required(builder.getOrCreate()), server)
    except ImportError as error:
        raise SetupError(
            "Spark Connect needs packages that are not installed",
            code=ErrorCode.SPARK_FAILED,
            where=server,
            evidence=clean(str(error)),
            next_step="pip install 'distributary[connect]'",
        ) from error
    except (PySparkException, OSError, ValueError) as error:
        raise SetupError(
            "the Spark Connect server does not answer",
            code=ErrorCode.SPARK_FAILED,
            where=server,
            evidence=clean(str(error).replace(settings.remote, server))[:500],
            next_step="check spark.remote, and that the server is up",
        ) from None


def _submitted(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return a session in the JVM that `spark-submit` started; its own settings take precedence."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    conf = SparkConf(_jvm=gateway.jvm)
    # The defaults of a local master would be wrong on the cluster that was named there.
    there = replace(settings, master=conf.get("spark.master", settings.master))
    sockets = socket_folder() if there.is_local else None
    delta = has_delta(spark_version())
    for name, value in spark_conf(there, app_name=app_name, sockets=sockets, delta=delta).items():
        conf.setIfMissing(name, value)
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    return require_session(_required(session), f"master {there.master}")


def _required(session: SparkSession) -> SparkSession:
    for name, value in REQUIRED.items():
        session.conf.set(name, value)
    return session


def _as_conf(conf: Mapping[str, str]) -> SparkConf:
    return SparkConf().setAll(list(conf.items()))


def _did_not_start(master: str, log: Path, error: Exception) -> SetupError:
    lines = [
        line
        for file in (log.with_suffix(".out"), log)
        if file.is_file()
        for line in file.read_text("utf-8", "replace").splitlines()
        if line.strip() and not line.startswith(("WARNING:", "\tat "))
    ]
    few = too_few_files("\n".join(lines))
    return few or SetupError(
        "Spark did not start",
        code=ErrorCode.SPARK_FAILED,
        where=f"master {master}",
        evidence="\n".join(lines[-_EVIDENCE_LINES:]) or f"{type(error).__name__}: {error}",
        next_step=f"read {log} and {log.with_suffix('.out').name} beside it",
        log=log,
    )


def _jvm_exists() -> bool:
    return SparkContext._gateway is not None  # noqa: SLF001


# The causes of failed Spark jobs: the message of the failed task, without Spark's text around it.

_FAILURES_LONGEST = 500
_RAISED = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (?P<words>.+)$", re.M
)
_OWN_ERROR = re.compile(
    r"^distributary\.errors\.\w+: (?P<code>[A-Z_]+): (?P<what>.+)"
    r"(?:\n  at: (?P<where>.+))?(?:\n  seen: (?P<evidence>.+))?(?:\n  next: (?P<next_step>.+))?",
    re.M,
)
"""The text of an error that a task raised, as `DistributaryError.__str__` formats it."""
_NUMBERED = re.compile(r"\[Errno (?P<number>\d+)\] [^:\n]*(?:: '(?P<path>[^'\n]*)')?")
_ABOUT_THE_LAKE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the lake is read-only",
    errno.EACCES: "this user may not write to the lake",
    errno.EPERM: "this user may not write to the lake",
    errno.EIO: "the disk does not work",
    errno.ENOTDIR: "there is a file where the lake needs a folder",
}


def disk_failed(error: OSError) -> DistributaryError | None:
    """Return a retryable error for a failure of the disk; None for any other failure."""
    return _disk_failed(error.errno or 0, str(error.filename or ""))


def _disk_failed(number: int, path: str) -> DistributaryError | None:
    what = _ABOUT_THE_LAKE.get(number)
    if what is None:
        return None
    return LakeUnavailableError(
        what,
        where=path,
        evidence=os.strerror(number),
        next_step="free space, fix the permissions or move the file away, and run again: nothing "
        "is written twice; `distributary maintain` removes files that no table needs",
    )


_NO_PACKAGES = re.compile(
    r"ModuleNotFoundError: No module named '[\w.]+'"
    r"|Cannot run program \"[^\"]*\".*"
    r"|\S{0,99}/bin/python: \d+: exec: .*not found"
    r"|\[PYTHON_VERSION_MISMATCH\] .*"
)
"""The signs of workers whose Python cannot run tasks."""


def _cannot_run_tasks(text: str) -> SetupError | None:
    """Return the error for workers without packages, or without this version of Python."""
    match = _NO_PACKAGES.search(text)
    if match is None:
        return None
    version = ".".join(map(str, sys.version_info[:2]))
    return SetupError(
        "the Python of the workers cannot run tasks",
        code=ErrorCode.SPARK_FAILED,
        where="spark",
        evidence=match[0][:_LONGEST],
        next_step=f"set spark.environment: archive, which sends the packages of this machine, and "
        f"install Python {version} on the workers (DISTRIBUTARY_PYTHON names it there); or "
        "install distributary on them and set PYSPARK_PYTHON here",
    )


def spark_failed(error: PySparkException) -> DistributaryError:
    """Return the DistributaryError for a failed job; for failures of the disk it is retryable."""
    known = too_few_files(str(error)) or _cannot_run_tasks(str(error))
    if known is not None:
        return known
    raised = list(_RAISED.finditer(str(error)))
    lines = str(error).strip().splitlines()
    evidence = raised[-1][0] if raised else (lines[0] if lines else type(error).__name__)
    if raised and raised[-1]["kind"].endswith(TransferError.__name__):
        where, _, words = raised[-1]["words"].partition(": ")
        return LakeUnavailableError(
            "the object store did not accept or return a file",
            where=where,
            evidence=words[:_FAILURES_LONGEST],
            next_step="check the store, the bucket and the credentials in lake.storage_options, "
            "and run again: no batch is half written",
        )
    task_error = _own_error(str(error))
    if task_error is not None:
        return task_error
    numbered = _NUMBERED.search(evidence)
    disk = _disk_failed(int(numbered["number"]), numbered["path"] or "") if numbered else None
    if disk is not None:
        return disk
    return DistributaryError(
        "Spark could not run the batch",
        code=ErrorCode.SPARK_FAILED,
        evidence=evidence[:_FAILURES_LONGEST],
        next_step="run again with --debug to see Spark's own messages",
    )


def _own_error(text: str) -> DistributaryError | None:
    """Build the DistributaryError that a task raised last, from Spark's text; None without one."""
    raised = list(_OWN_ERROR.finditer(text))
    if not raised or raised[-1]["code"] not in ErrorCode.__members__:
        return None
    parts = {n: (part or "")[:_FAILURES_LONGEST] for n, part in raised[-1].groupdict().items()}
    code = ErrorCode(parts["code"])
    # An error that the driver retries must keep its class.
    kind = LakeUnavailableError if code is ErrorCode.LAKE_UNAVAILABLE else DistributaryError
    return kind(
        parts["what"],
        code=code,
        where=parts["where"],
        evidence=parts["evidence"],
        next_step=parts["next_step"],
    )


# The names of Spark jobs, for its UI, for listeners and for cancelling. A job names its pipeline,
# batch and step: in its description, which the UI shows, and in tags, which listeners and the
# status API read. A Connect session has tags only.

_DESCRIPTION = "spark.job.description"
_TAGS = "spark.job.tags"
"""The local property in which `addJobTag` keeps tags, separated by commas; setting it takes two
calls to the JVM instead of a dozen."""


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a session in this process; None for Spark Connect."""
    try:
        return session.sparkContext
    except PySparkException:
        return None


@contextmanager
def named(
    session: SparkSession, *, pipeline: str, batch: int, step: str, attempt: str = ""
) -> Iterator[None]:
    """Name the jobs that this thread starts; restore the names before when the block ends.

    Jobs can be cancelled by `attempt`.
    """
    tags = [f"pipeline:{pipeline}", f"batch:{batch}", f"step:{step}"]
    tags += [attempt_tag(attempt)] if attempt else []
    context = context_of(session)
    if context is None:
        # Tags apply to the requests of this thread only, and are sent with each of them.
        for tag in tags:
            session.addTag(tag)
        try:
            yield
        finally:
            for tag in tags:
                session.removeTag(tag)
        return
    before = context.getLocalProperty(_TAGS), context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_TAGS, ",".join([*filter(None, before[:1]), *tags]))
    context.setLocalProperty(_DESCRIPTION, f"{pipeline}, batch {batch}: {step}")
    try:
        yield
    finally:
        context.setLocalProperty(_TAGS, before[0])  # type: ignore[arg-type]
        context.setLocalProperty(_DESCRIPTION, before[1])  # type: ignore[arg-type]


def cancel(session: SparkSession, attempt: str) -> None:
    """Cancel the jobs of an attempt, whichever thread has started them."""
    context = context_of(session)
    if context is None:
        session.interruptTag(attempt_tag(attempt))
    else:
        # The session's own method does not cancel jobs of other threads.
        context.cancelJobsWithTag(attempt_tag(attempt))


def attempt_tag(attempt: str) -> str:
    """Return the tag of all jobs of one attempt at a stage."""
    return f"attempt:{attempt}"
