"""Refusals of deployments that could not run, before anything is written.

Properties that are known only where the pipeline runs are not guessed: they become warnings, and
`doctor` checks them there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING

from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_types import target_entry
from distributary.errors import ConfigError, ErrorCode
from distributary.spark.versions import NEEDED
from distributary.store.base import local_path

if TYPE_CHECKING:
    from distributary.deploy.targets.target_entry import TargetEntry


def refuse_unfit(
    name: str, pipeline: Installable, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Raise ConfigError for a deployment that cannot run; return unknown properties as warnings."""
    entry = target_entry(name)
    _refuse_unseen_folders(entry, pipeline)
    return tuple(entry.unfit(pipeline, environ))


def _refuse_unseen_folders(entry: TargetEntry, pipeline: Installable) -> None:
    """Raise ConfigError if lake or checkpoint are not on a shared, permanent disk."""
    why = entry.hides_folders(pipeline)
    if not why:
        return
    shared = entry.shared(pipeline)
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
            next_step=entry.where_instead,
            target=entry.name,
        )


def other_spark(where: str, evidence: str, instead: str) -> ConfigError:
    """Return the error for a Spark of another version."""
    return ConfigError(
        f"the engine runs on Spark {NEEDED}",
        code=ErrorCode.DEPLOY_UNFIT,
        where=where,
        evidence=evidence,
        next_step=instead,
    )
