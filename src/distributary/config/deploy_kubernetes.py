"""How a pipeline runs on Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.secrets import secrets_of
from distributary.config.text import Listed, Text, matching

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
_JVM_MEMORY = re.compile(r"[0-9]{1,9}[kmgt]")
_CRON_FIELDS = 5
_LONGEST_NAME = 40


def _short_label(value: str) -> str:
    if len(value) > _LONGEST_NAME:
        raise PydanticCustomError("dns_label", "must have 40 characters at most")
    return value


def _cron(value: str) -> str:
    if not value.startswith("@") and len(value.split()) != _CRON_FIELDS:
        raise PydanticCustomError("cron", "must be a cron of 5 fields, such as 0 * * * *")
    return value


Label = Annotated[
    Text, matching(_LABEL, "dns_label", "must be lower-case letters, digits and dashes")
]
ShortLabel = Annotated[Label, AfterValidator(_short_label)]
Subdomain = Annotated[
    Text, matching(_SUBDOMAIN, "dns_name", "must be lower-case letters, digits, dashes and dots")
]
Subdomains = Annotated[tuple[Subdomain, ...], Listed]
Image = Annotated[
    Text, matching(_IMAGE, "image", "must be an image, such as registry.example/games:1.0")
]
Quantity = Annotated[
    Text, matching(_QUANTITY, "k8s_quantity", "must be a quantity, such as 500m, 2 or 4Gi")
]
JvmMemory = Annotated[
    Text, matching(_JVM_MEMORY, "memory", "must be a number and k, m, g or t, such as 4g")
]


class Resources(Section):
    """What the pod is given."""

    cpu: Quantity = "1"
    """Cores that are set aside."""
    memory: Quantity = "4Gi"
    """Memory that is set aside, and the most that it may use."""
    cpu_limit: Quantity | None = None
    """Most cores; no limit when left out, because a limit slows a JVM down without need."""


class Executors(Section):
    """Spark's executors, as pods of their own."""

    executors: int = Field(default=0, ge=0)
    """Number of executors; 0: Spark runs inside the one pod."""
    cores: int = Field(default=1, ge=1)
    """Cores of each."""
    memory: JvmMemory = "2g"
    """Memory of each one's JVM."""
    conf: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"spark.kubernetes.executor.request.cores": "500m"}]
    )
    """Further Spark settings, each starting with `spark.`; never a secret."""

    def conflicts(self) -> Iterator[Conflict]:
        """Spark's settings only, and nothing that others must not read."""
        for name, value in self.conf.items():
            if not name.startswith("spark."):
                yield ("conf", name), "must start with spark."
            elif any(secrets_of(name, value)):
                yield ("conf", name), "holds a secret: set spark.conf with ${env:...} instead"


class Kubernetes(Section):
    """A deployment of one pod, or a job by the clock."""

    image: Image = Field(examples=["registry.example/games:1.0"])
    """Image of the pods; `install` writes a Dockerfile for it."""
    base_image: Image = Field(
        default="python:3.11-slim-bookworm", examples=["python:3.11-slim-bookworm@sha256:..."]
    )
    """Image that the Dockerfile starts from: Debian with Python; pin it with `@sha256:DIGEST`."""
    name: ShortLabel | None = None
    """Name of all objects; made of the pipeline's when left out."""
    namespace: Label = "default"
    """Namespace of all objects."""
    service_account: Subdomain | None = None
    """An existing service account; one is made when left out."""
    secrets: Subdomains = Field(default=(), examples=[["games-secrets"]])
    """Secrets whose keys become the variables of `${env:...}`."""
    secret_files: Subdomains = Field(default=(), examples=[["games-files"]])
    """Secrets mounted as files under `/secrets/NAME/KEY`, for `${file:...}`."""
    token_secret: Subdomain | None = Field(default=None, examples=["games-token"])
    """Secret whose key `token` opens `/status` and `/metrics`; nobody gets in when left out."""
    pull_secrets: Subdomains = ()
    """Secrets with which images are pulled."""
    claim: Subdomain | None = Field(default=None, examples=["games-lake"])
    """Existing volume claim, mounted at `/lake`; needed for a lake on a file system."""
    resources: Resources = Field(default_factory=Resources)
    """What the pod is given."""
    spark: Executors = Field(default_factory=Executors)
    """Executors as pods of their own."""
    schedule: Annotated[Text, AfterValidator(_cron)] | None = Field(
        default=None, examples=["0 * * * *"]
    )
    """Cron of the runs, each of which takes what is there and ends; without it the pod stays."""
    timezone: Text = "Etc/UTC"
    """Time zone of the schedule."""
    port: int = Field(default=8080, ge=1024, le=65535)
    """Port of the health endpoint."""
    retries: int = Field(default=3, ge=0)
    """Further tries of a scheduled run."""
