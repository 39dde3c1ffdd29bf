"""The masters of clusters, asked for an answer before Spark waits for one."""

from __future__ import annotations

import os
import socket

from distributary.errors import ErrorCode, SetupError
from distributary.observe.log_format import listed
from distributary.spark.settings import SparkSettings

_CONNECT_SECONDS = 5.0


def unreachable(master: str) -> str:
    """Return the reason why Spark would wait for minutes in vain; empty if there is none."""
    if master.startswith("yarn"):
        known = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
        return "" if known else "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"
    failed = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not master.startswith("spark://") or not port.isdigit():
            return ""
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            failed.append(f"{address}: {error.strerror or type(error).__name__}")
        else:
            return ""
    return f"no master answers: {listed(failed)}"


def refuse_unreachable(settings: SparkSettings) -> None:
    """Raise SetupError if the cluster of a command cannot be reached from this machine."""
    why = unreachable(settings.master) if not settings.remote else ""
    if why:
        raise SetupError(
            "the cluster of this pipeline cannot be reached",
            code=ErrorCode.SPARK_FAILED,
            where=f"spark.master {settings.master}",
            evidence=why,
            next_step="start the cluster; or set DISTRIBUTARY_SPARK__MASTER='local[*]', and the "
            "work is done on this machine, by its own Spark",
        )
