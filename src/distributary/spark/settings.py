"""The settings of a Spark session: defaults, which the user overrides, and required ones."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from distributary.config.base import SECRET_NAMES, is_secret_name, jvm_options, secrets_within
from distributary.config.load import Loaded
from distributary.config.runtime import Trigger, TriggerKind
from distributary.errors import ConfigError
from distributary.spark.packages import PYTHON_OF_WORKERS, UNPACKED

REQUIRED: Mapping[str, str] = {
    # Tables that are committed without Spark hold UTC timestamps only.
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that no user may change, because the guarantees depend on them."""

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
# Compiling each plan costs a short run more than it gains: Python reads the records.
_QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?")
_GIB = 1 << 30
_FEW = 2
_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
# The settings that the JVM, or spark-submit inside it, needs before a SparkConf can be passed.
_AT_LAUNCH = (
    "spark.app.name",
    "spark.archives",
    "spark.driver.",
    "spark.files",
    "spark.jars",
    "spark.kerberos.",
    "spark.kubernetes.",
    "spark.master",
    "spark.submit.",
    "spark.yarn.",
)
# Without these the JVM starts wrongly; given by a variable, they hold paths and names.
_NOT_LATER = (
    "spark.app.name",
    "spark.archives",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.files",
    "spark.jars",
    "spark.kerberos.",
    "spark.master",
    "spark.submit.",
    "spark.yarn.dist.",
)
_ARCHIVES = "spark.archives"
_PYTHON = "spark.pyspark.python"
_AUTHENTICATE = "spark.authenticate"
_SHARED_SECRET = "spark.authenticate.secret"  # noqa: S105 - a name
_OF_CLUSTERS = (
    "spark.archives",
    "spark.dynamicAllocation.",
    "spark.kubernetes.",
    "spark.submit.",
    "spark.yarn.",
)
"""The settings that name a cluster's own things, or that a local master refuses."""
_DRIVER_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The choice of the Spark session to start, and of its log file."""

    master: str = "local[*]"
    remote: str = field(default="", repr=False)
    """The address of a Spark Connect server, which is used instead; may hold a token."""
    driver_memory: str | None = None
    """The driver's memory, such as `4g`; by default a quarter of the machine's memory, between 1g
    and 4g."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings, which override the defaults; may hold secrets."""
    sealed: frozenset[str] = frozenset()
    """The names of options that are secret, whatever they are called."""
    log_file: Path | None = None
    """The file of Spark's log; by default a new file in the user's log folder."""
    log_level: str = "WARN"
    environment: str = "auto"
    """Where executors get their Python packages: `archive`, `workers` or `auto`."""
    short_lived: bool = False
    """True to start in half the time and compute more slowly: for commands, demos and tests."""

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        trigger: Trigger | None = None,
        *,
        log_file: Path | None = None,
        loud: bool = False,
        short_lived: bool | None = None,
    ) -> SparkSettings:
        """Build the settings for a pipeline file.

        By default, a run that ends by itself starts quickly, and a run that continues computes
        quickly.
        """
        config, section = loaded.config, loaded.config.spark
        ends = (trigger or config.trigger).kind is TriggerKind.AVAILABLE_NOW
        catalog = config.lake.registered_in
        needed = {} if catalog is None else catalog.spark_conf
        return cls(
            master=section.master,
            remote="" if section.remote is None else section.remote.get_secret_value(),
            driver_memory=section.driver_memory,
            conf={**needed, **section.options},
            sealed=loaded.sealed,
            environment=section.environment,
            log_file=log_file,
            log_level="INFO" if loud else "WARN",
            short_lived=ends if short_lived is None else short_lived,
        )

    @property
    def is_local(self) -> bool:
        """Return whether driver and executors are one process on this machine."""
        return _LOCAL.fullmatch(self.master) is not None

    def on_this_machine(self) -> SparkSettings:
        """Return the settings of a session without the cluster, for the work of a small repair."""
        conf = {name: v for name, v in self.conf.items() if not name.startswith(_OF_CLUSTERS)}
        return replace(self, master="local[*]", remote="", conf=conf)

    @property
    def sends_packages(self) -> bool:
        """Return whether the driver sends its Python packages to the executors."""
        if self.is_local or self.environment != "auto":
            return not self.is_local and self.environment == "archive"
        chosen = _PYTHON in self.conf or "PYSPARK_PYTHON" in os.environ
        # Pods have an image, which has the packages.
        return not chosen and self.master.startswith(("spark://", "yarn"))

    @property
    def has_few_cores(self) -> bool:
        """Return whether the session has at most two cores."""
        return self.is_local and _cores(self.master) == _FEW

    @property
    def authenticates(self) -> bool:
        """Return whether Spark's processes authenticate each other with a secret.

        On one machine Spark generates a secret for each start, which is in no setting. The daemons
        of a cluster must know the secret: there it is used if the user sets it.
        """
        setting = self.conf.get(_AUTHENTICATE)
        if setting is not None:
            return setting.strip().lower() == "true"
        return self.is_local or bool(self.conf.get(_SHARED_SECRET))

    @property
    def chooses_collector(self) -> bool:
        """Return whether the user's options name a garbage collector: a JVM refuses to have two."""
        return _COLLECTOR.search(self.conf.get("spark.driver.extraJavaOptions", "")) is not None


def spark_conf(
    settings: SparkSettings,
    *,
    app_name: str,
    jars: Sequence[Path] = (),
    jars_first: bool = False,
    java_options: Sequence[str] = (),
    sockets: Path | None = None,
    delta: bool = True,
    archive: Path | None = None,
) -> dict[str, str]:
    """Return every setting of a new session; raise ConfigError for a changed required setting.

    `jars_first` puts the jars on the class path before Spark's own, which is faster and requires
    one process and jars without classes of Spark. `sockets` is a local folder for the sockets of
    Python workers, which need no secret there; without it they listen on a port. `archive` holds
    the Python packages that Spark sends to the executors. Without `delta` the session has no Delta
    Lake, whose settings would stop it from starting.
    """
    user = settings.conf
    for name, value in REQUIRED.items():
        if user.get(name, value) != value:
            raise ConfigError(
                f"{name} must be {value}",
                where=f"spark.conf.{name}",
                next_step="leave the setting out; convert time zones where the tables are read",
            )
    if not settings.is_local:
        _refuse_secrets_of_executors(settings)
    return {
        **_DEFAULTS,
        **(_DELTA if delta else {}),
        **(_local_defaults(settings.master) if settings.is_local else _CLUSTER),
        **({_AUTHENTICATE: "true"} if settings.authenticates else {}),
        **(_unix_sockets(sockets) if sockets is not None else {}),
        **(_QUICK if settings.short_lived else {}),
        "spark.app.name": app_name,
        **user,
        **_combined(settings, java_options, delta=delta),
        **(_jars(user, jars, first=jars_first) if jars else {}),
        **(_packages(user, archive) if archive is not None else {}),
        **REQUIRED,
    }


def launch_conf(
    conf: Mapping[str, str],
    *,
    sealed: Collection[str] = (),
    options_file: Path | None = None,
) -> dict[str, str]:
    """Return the settings that may be on a command line, where every user can read them.

    `options_file` holds the JVM's secret options, for the JVM to read.
    """
    shown = {
        name: value
        for name, value in conf.items()
        if name.startswith(_AT_LAUNCH)
        and not is_secret_name(name)
        and (name.startswith(_NOT_LATER) or not (name in sealed or any(secrets_within(value))))
    }
    for name in _DRIVER_OPTIONS:
        hidden = _secret_options(conf, name, sealed)
        if hidden:
            options = [option for option in jvm_options(conf[name]) if option not in hidden]
            shown[name] = " ".join(map(quoted_option, options))
    if options_file is not None:
        last = _DRIVER_OPTIONS[-1]
        shown[last] = _joined(" ", shown.get(last, ""), quoted_option(f"@{options_file}"))
    return shown


def secret_options(conf: Mapping[str, str], *, sealed: Collection[str] = ()) -> list[str]:
    """Return the options of the driver's JVM that must not be on its command line."""
    return [option for name in _DRIVER_OPTIONS for option in _secret_options(conf, name, sealed)]


def _secret_options(conf: Mapping[str, str], name: str, sealed: Collection[str]) -> list[str]:
    options = jvm_options(conf.get(name, ""))
    return [option for option in options if name in sealed or any(secrets_within(option))]


def _refuse_secrets_of_executors(settings: SparkSettings) -> None:
    # Spark puts these options on the command lines of other machines.
    for name, value in settings.conf.items():
        if name.endswith("JavaOptions") and name not in _DRIVER_OPTIONS:
            if name in settings.sealed or any(secrets_within(value)):
                raise ConfigError(
                    "a secret would be on the command line of each executor",
                    where=f"spark.conf.{name}",
                    next_step="give executors a file or a variable (spark.executorEnv.NAME), "
                    "and write options that are not secret without ${...}",
                )


def quoted_option(option: str) -> str:
    """Quote a JVM option for Spark's parser of option strings."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    # One Arrow batch per task where it fits: decoding and writing are column-wise.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "256m",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.worker.reuse": "true",
}


_CLUSTER = {
    "spark.ui.enabled": "true",
    # Visitors of the page may see jobs, but not end them.
    "spark.ui.killEnabled": "false",
}


def _local_defaults(master: str) -> dict[str, str]:
    return {
        # A server that is not needed: on this machine `status` and `ui` show more.
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(_cores(master)),
        # Workers are forked from a process that has imported what tasks need.
        "spark.python.daemon.module": "distributary.engine.worker",
        # Delta's default of 50 makes every read of a small table 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def _unix_sockets(folder: Path) -> dict[str, str]:
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def _jars(user: Mapping[str, str], jars: Sequence[Path], *, first: bool) -> dict[str, str]:
    name, between = ("spark.driver.extraClassPath", os.pathsep) if first else ("spark.jars", ",")
    return {name: _joined(between, between.join(map(str, jars)), user.get(name))}


def _packages(user: Mapping[str, str], archive: Path) -> dict[str, str]:
    archives = _joined(",", f"{archive}#{UNPACKED}", user.get(_ARCHIVES))
    return {_ARCHIVES: archives, _PYTHON: PYTHON_OF_WORKERS}


def _combined(
    settings: SparkSettings, java_options: Sequence[str], *, delta: bool
) -> dict[str, str]:
    """Return the settings whose values combine the defaults with the user's."""
    user = settings.conf
    secret = _secret_names(settings)
    conf = {
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory or default_driver_memory(),
        **_extensions(user.get("spark.sql.extensions"), delta=delta),
        "spark.redaction.regex": _joined("|", secret, user.get("spark.redaction.regex")),
        "spark.sql.redaction.options.regex": _joined(
            "|", f"{secret}|url", user.get("spark.sql.redaction.options.regex")
        ),
    }
    options = user.get("spark.driver.extraJavaOptions")
    if java_options or options:
        # The user's options come last: of two JVM options the later one wins.
        ours = " ".join(quoted_option(option) for option in java_options)
        conf["spark.driver.extraJavaOptions"] = _joined(" ", ours, options)
    return conf


def _extensions(users: str | None, *, delta: bool) -> dict[str, str]:
    extensions = _joined(",", _DELTA_EXTENSION if delta else "", users)
    return {"spark.sql.extensions": extensions} if extensions else {}


def _secret_names(settings: SparkSettings) -> str:
    """Return the pattern of secret names by which Spark masks its event log and its pages."""
    sealed = settings.sealed
    # A password inside an address or a connection string has no telling name.
    holding = {name for name, value in settings.conf.items() if any(secrets_within(value))}
    # An option of the JVM is a property with a name of its own.
    options = [
        o for n in _DRIVER_OPTIONS if n in sealed for o in jvm_options(settings.conf.get(n, ""))
    ]
    names = {*sealed, *holding, *(o[2:].partition("=")[0] for o in options if o.startswith("-D"))}
    return "|".join([f"(?i){SECRET_NAMES}", *(f"^{re.escape(name)}$" for name in sorted(names))])


def default_driver_memory() -> str:
    """Return a quarter of the memory of this process, between 1g and 4g."""
    quarter = min(psutil.virtual_memory().total, _container_limit()) // 4
    return f"{min(4 * _GIB, max(_GIB, quarter)) >> 20}m"


def _container_limit() -> int:
    # A container sees the memory of the whole machine, and is killed at its own limit.
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()
    except OSError:
        limit = ""
    return int(limit) if limit.isdigit() else 1 << 62


def _cores(master: str) -> int:
    match = _LOCAL.fullmatch(master)
    count = match[1] if match else None
    cores = os.cpu_count() if count == "*" else int(count or 1)
    return max(_FEW, cores or 1)


def _joined(between: str, ours: str, users: str | None) -> str:
    return between.join(part for part in (ours, users) if part)
