"""Manifests and a chart for Kubernetes, as an entry of the table of targets."""

from __future__ import annotations

from pathlib import Path

from distributary.config.base import Section
from distributary.config.deploy import Kubernetes
from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.kubernetes_files import kubernetes_target
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_entry import TargetEntry

_LAKE = "/lake"


class KubernetesEntry(TargetEntry):
    """Manifests and a chart."""

    name, section, job_key = "kubernetes", "kubernetes", "name"
    has_own_files = False
    needs = "deploy.kubernetes.image"
    restarts = True
    where_instead = (
        "put both in a bucket (s3://, gs://, abfss://), which needs no volume; or name a "
        "volume claim with deploy.kubernetes.claim and put both below /lake"
    )

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline."""
        return kubernetes_target(pipeline, out=out)

    def placeholder(self, mark: str) -> Section:
        """Return the section with a mark in place of the image."""
        return Kubernetes.model_construct(image=mark)

    def hides_folders(self, pipeline: Installable) -> str:
        """Return why the lake cannot be in a folder of a pod; empty if it can."""
        settings = pipeline.deploy.kubernetes
        if settings is None:
            return ""
        executors = settings.spark.executors
        unseen = f"is a folder that its {executors} executors do not see"
        # only the mounted volumes of a pod are kept, and all other folders are read-only
        return unseen if executors else "is a folder of the pod, and ends with it"

    def shared(self, pipeline: Installable) -> tuple[str, ...]:
        """Return the folder of the volume claim, if there is one."""
        settings = pipeline.deploy.kubernetes
        return (_LAKE,) if settings is not None and settings.claim else ()


ENTRY = KubernetesEntry()
