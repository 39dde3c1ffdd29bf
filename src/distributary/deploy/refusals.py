"""What cannot run where it is to be installed: refused before anything is written.

What is known only where the pipeline runs is not guessed: it is told as a warning, and `doctor`
there tries it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath

from distributary.config.deploy import Databricks, SparkSubmit
from distributary.deploy.files import TargetName
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, ErrorCode
from distributary.spark.settings import SPARK_VERSION
from distributary.store.base import local_path

# by the first number of a version; Databricks lists both under "release notes"
_RUNTIMES = {13: "3.4", 14: "3.5", 15: "3.5", 16: "3.5", 17: "4.0", 18: "4.1", 19: "4.2"}
_ENVIRONMENTS = {1: "3.5", 2: "3.5", 3: "3.5", 4: "4.0", 5: "4.1"}
_NUMBER = re.compile(r"([0-9]{1,4})\b")
_CORE = re.compile(r"spark-core_[0-9.]+-([0-9]+\.[0-9]+)")
_LAKE_OF_A_POD = "/lake"
_VOLUMES = "/Volumes"
_OWN_DISK = "/local_disk0"


def refuse_unfit(
    name: TargetName, pipeline: Installable, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Raise ConfigError for what cannot run there; what could not be found out, as warnings."""
    _refuse_unseen_folders(name, pipeline)
    warnings: list[str] = []
    settings = pipeline.deploy.databricks
    if name is TargetName.DATABRICKS and settings is not None:
        if settings.serverless:
            _refuse_beyond_connect(pipeline)
        warnings += _runtime(pipeline, settings)
    if name is TargetName.SPARK_SUBMIT and environ.get("SPARK_HOME"):
        warnings += _spark_home(Path(environ["SPARK_HOME"]))
    return tuple(warnings)


def spark_in(home: Path) -> str:
    """The version of a Spark that is installed; empty where it cannot be told."""
    found = (_CORE.match(path.name) for path in home.glob("jars/spark-core_*.jar"))
    return next((each[1] for each in found if each), "")


def _refuse_unseen_folders(name: TargetName, pipeline: Installable) -> None:
    """Lake and checkpoint must outlive the machine, and be seen by all that work on them."""
    why = _why_not_a_folder(name, pipeline)
    if not why:
        return
    shared = _shared(name, pipeline)
    for key, address in (("lake.path", pipeline.lake), ("lake.checkpoint", pipeline.checkpoint)):
        if not address or local_path(address) is None:
            continue
        path = PurePosixPath(normpath(address.removeprefix("file://").removeprefix("file:")))
        if any(path.is_relative_to(folder) for folder in shared):
            continue
        raise ConfigError(
            f"{key} {why}",
            code=ErrorCode.DEPLOY_UNFIT,
            where=f"{pipeline.path.name} {key}",
            evidence=f"{address}; shared are "
            f"{', '.join(shared) if shared else 'none, and no bucket is named'}",
            next_step=_where_instead(name),
            target=str(name),
        )


def _why_not_a_folder(name: TargetName, pipeline: Installable) -> str:
    """What is wrong with a folder there; nothing where all is one machine that stays."""
    deploy = pipeline.deploy
    match name:
        case TargetName.KUBERNETES:
            if deploy.kubernetes is None:
                return ""
            executors = deploy.kubernetes.spark.executors
            unseen = f"is a folder that its {executors} executors do not see"
            # of a pod only what is mounted stays, and all else is read-only
            return unseen if executors else "is a folder of the pod, and ends with it"
        case TargetName.DATABRICKS:
            return _why_not_on_databricks(deploy.databricks)
        case TargetName.SPARK_SUBMIT:
            master = (deploy.spark_submit or SparkSubmit()).master or pipeline.master
        case _:
            master = pipeline.master
    if pipeline.connects:
        return "is a folder that the Spark Connect server and its executors need not see"
    if re.match(r"local(\[|$)", master):
        return ""
    return f"is a folder that the executors of {master} need not see"


def _why_not_on_databricks(settings: Databricks | None) -> str:
    if settings is None:
        return ""
    cluster = settings.cluster
    if cluster is None:
        return "is a folder of a machine that ends with the run"
    if cluster.id is not None:
        return f"is a folder that not all machines of cluster {cluster.id} need to see"
    workers = cluster.max_workers or cluster.workers or 0
    if workers:
        return f"is a folder that its {workers} workers do not see"
    return "is a folder of a cluster that ends with the run"


def _shared(name: TargetName, pipeline: Installable) -> tuple[str, ...]:
    if name is TargetName.KUBERNETES:
        settings = pipeline.deploy.kubernetes
        return (_LAKE_OF_A_POD,) if settings is not None and settings.claim else ()
    if name is TargetName.DATABRICKS:
        return (_VOLUMES, *pipeline.deploy.shared)
    return pipeline.deploy.shared


def _where_instead(name: TargetName) -> str:
    match name:
        case TargetName.KUBERNETES:
            return (
                "put both in a bucket (s3://, gs://, abfss://), which needs no volume; or name a "
                "volume claim with deploy.kubernetes.claim and put both below /lake"
            )
        case TargetName.DATABRICKS:
            return (
                f"put both in a bucket (s3://, gs://, abfss://), or the checkpoint below {_VOLUMES}"
                f"; {_OWN_DISK} and the like are the disk of one machine, and end with it"
            )
    return (
        "put both in a bucket (s3://, gs://, abfss://), or, if every machine sees the folder "
        "under this path, write deploy: {shared: [FOLDER]}"
    )


def _refuse_beyond_connect(pipeline: Installable) -> None:
    """Serverless compute is Spark Connect, without a JVM and without variables of one's own."""
    reasons = [f"{name} needs the driver's JVM" for name in pipeline.needs_jvm]
    if pipeline.connects:
        reasons.append("spark.remote names another server")
    if pipeline.variables:
        reasons.append(f"nobody can set the variables {', '.join(pipeline.variables)}")
    if reasons:
        raise ConfigError(
            "serverless compute cannot run this pipeline",
            code=ErrorCode.DEPLOY_UNFIT,
            where=f"{pipeline.path.name} deploy.databricks.serverless",
            evidence="; ".join(reasons),
            next_step="name a cluster in deploy.databricks.cluster, or leave those settings out; "
            "secrets are ${databricks:SCOPE/KEY} there",
            target="databricks",
        )


def _runtime(pipeline: Installable, settings: Databricks) -> Iterator[str]:
    """Warn of a runtime whose Spark is not known; refuse one that has another."""
    if settings.serverless:
        key, given, known = "environment_version", settings.environment_version, _ENVIRONMENTS
    elif settings.cluster is not None and settings.cluster.spark_version is not None:
        key, given, known = "cluster.spark_version", settings.cluster.spark_version, _RUNTIMES
    else:
        yield f"not checked here: whether the cluster's Spark is {SPARK_VERSION}"
        return
    number = _NUMBER.match(given)
    found = known.get(int(number[1])) if number else None
    if found is None:
        yield f"not checked here: whether the Spark of {given} is {SPARK_VERSION}"
    elif found != SPARK_VERSION:
        fitting = [str(n) for n, spark in known.items() if spark == SPARK_VERSION]
        raise _other_spark(
            f"{pipeline.path.name} deploy.databricks.{key}",
            f"{given} has Spark {found}",
            f"choose {' or '.join(fitting)}" if fitting else "choose another",
        )


def _spark_home(home: Path) -> Iterator[str]:
    found = spark_in(home)
    if not found:
        yield f"not checked here: whether the Spark in {home} is {SPARK_VERSION}"
    elif found != SPARK_VERSION:
        raise _other_spark(
            "SPARK_HOME",
            f"{home} has Spark {found}",
            "unset SPARK_HOME: the script takes the Spark that is installed with distributary",
        )


def _other_spark(where: str, evidence: str, instead: str) -> ConfigError:
    return ConfigError(
        f"the engine is made for Spark {SPARK_VERSION}",
        code=ErrorCode.DEPLOY_UNFIT,
        where=where,
        evidence=evidence,
        next_step=instead,
    )
