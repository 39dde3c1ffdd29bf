"""The files of `install --target kubernetes`: an image, plain manifests, and a chart of the same.

A template of the chart is the manifest itself with places to fill in: rendered with the values
beside it, the chart is the manifests.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import distributary
from distributary.config.deploy import Kubernetes
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.package import WHEEL
from distributary.deploy.pipeline_file import Installable, to_yaml
from distributary.errors import ConfigError, ErrorCode

# The image of a pipeline's pods, and what starts in them.

USER = 10001
"""Neither root nor anybody of the base image."""
HOME = "/opt/distributary"
JARS = f"{HOME}/jars"

_DIGEST = "@sha256:"
_PINNED = "# the digest says which image; renew it now and then, for Debian's security updates"
_UNPINNED = """\
# NOT PINNED: a tag may name another image tomorrow. Look its digest up (docker buildx imagetools
# inspect NAME:TAG) and set deploy.kubernetes.base_image: NAME:TAG@sha256:DIGEST"""

ENTRYPOINT = """\
#!/bin/sh
# the driver's command as it is given; `executor` is how Spark on Kubernetes asks for an executor
set -eu
if [ "${1:-}" != executor ]; then
  if [ -z "${DISTRIBUTARY_TOKEN:-}" ]; then
    # one that nobody knows: /live and /ready answer without it, all the rest stays closed
    DISTRIBUTARY_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')
    export DISTRIBUTARY_TOKEN
  fi
  exec distributary "$@"
fi
spark=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
set --
# Spark numbers its JVM options: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
number=0
while eval "option=\\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec java "$@" \\
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \\
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*:${DISTRIBUTARY_JARS:-}/*" \\
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
  --driver-url "$SPARK_DRIVER_URL" \\
  --executor-id "$SPARK_EXECUTOR_ID" \\
  --cores "$SPARK_EXECUTOR_CORES" \\
  --app-id "$SPARK_APPLICATION_ID" \\
  --hostname "$SPARK_EXECUTOR_POD_IP" \\
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \\
  --podName "$SPARK_EXECUTOR_POD_NAME"
"""


def dockerfile(base: str) -> str:
    """Python, Java, this version and its JVM connectors; nothing of a pipeline, no secret."""
    return f"""\
{_PINNED if _DIGEST in base else _UNPINNED}
ARG BASE_IMAGE={base}
FROM ${{BASE_IMAGE}}

# signed by Debian, and the newest that it has: an image that is built later may have newer ones
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \\
    && rm -rf /var/lib/apt/lists/*

# the wheel is made by `distributary package`; no index is asked for Distributary. Its locks name
# each file of the rest by checksum: first what builds source packages, of which PySpark is one
COPY entrypoint.sh {WHEEL} /tmp/build/
RUN python -m zipfile --extract /tmp/build/{WHEEL} /tmp/wheel \\
    && pip install --no-cache-dir --require-hashes \\
        --requirement /tmp/wheel/distributary/deploy/build.lock \\
    && pip install --no-cache-dir --require-hashes --no-build-isolation \\
        --requirement /tmp/wheel/distributary/deploy/requirements.lock \\
    && pip install --no-cache-dir --no-deps --no-index /tmp/build/{WHEEL} \\
    && install -m 0755 /tmp/build/entrypoint.sh /usr/local/bin/distributary-entrypoint \\
    && XDG_CACHE_HOME=/tmp/cache python -m distributary.spark.jars \\
    && mkdir -p {JARS} \\
    && find /tmp/cache -name '*.jar' -exec cp {{}} {JARS}/ \\; \\
    && rm -rf /tmp/build /tmp/cache /tmp/wheel

ENV DISTRIBUTARY_JARS={JARS} PYTHONUNBUFFERED=1
USER {USER}:{USER}
WORKDIR {HOME}
ENTRYPOINT ["tini", "-s", "--", "distributary-entrypoint"]
"""


# Spark's executors as pods: what the driver's pod must be allowed, and what it must know.

DRIVER_PORT, BLOCK_PORT = 7078, 7079
FOLDER = "/etc/spark"
MASTER = "k8s://https://kubernetes.default.svc"
_TEMPLATE = "executor.yaml"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def role() -> Object:
    """What the driver may do, in its own namespace only."""
    things = ["pods", "configmaps", "services", "persistentvolumeclaims"]
    return {"rules": [{"apiGroups": [""], "resources": things, "verbs": _VERBS}]}


def role_binding(name: str, settings: Kubernetes, *, namespace: Any) -> Object:
    """Who may do it."""
    account = {"kind": "ServiceAccount", "name": settings.service_account or name}
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [account | {"namespace": namespace}],
    }


def driver_service(selector: dict[str, str]) -> Object:
    """The address at which executors find the driver."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [
            {"name": "driver", "port": DRIVER_PORT},
            {"name": "blocks", "port": BLOCK_PORT},
        ],
    }


def spark_files(name: str, settings: Kubernetes, *, image: Any, namespace: Any) -> dict[str, str]:
    """Settings of Spark and the template of an executor, for a config map."""
    spark = settings.spark
    conf = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.authenticate.executor.serviceAccountName": (
            settings.service_account or name
        ),
        "spark.kubernetes.executor.podTemplateFile": f"{FOLDER}/{_TEMPLATE}",
        "spark.executor.instances": str(spark.executors),
        "spark.executor.cores": str(spark.cores),
        "spark.executor.memory": spark.memory,
        "spark.driver.host": f"{name}-driver.{namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - executors are other pods
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        **spark.conf,
    }
    lines = "".join(f"{key} {value}\n" for key, value in conf.items())
    return {"spark-defaults.conf": lines, _TEMPLATE: to_yaml(_spark_template(settings))}


def _spark_template(settings: Kubernetes) -> Object:
    mounts = [{"name": "scratch", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own
    volumes: list[Object] = [{"name": "scratch", "emptyDir": {}}]
    if settings.claim is not None:
        mounts.append({"name": "lake", "mountPath": "/lake"})
        claim = {"claimName": settings.claim}
        volumes.append({"name": "lake", "persistentVolumeClaim": claim})
    container = {
        # the name by which Spark finds the container to complete
        "name": "spark-kubernetes-executor",
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the pod's own
        "securityContext": locked_container(),
        "volumeMounts": mounts,
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": locked_pod(),
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def locked_pod() -> Object:
    """Never root, and no system calls beyond the usual."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def locked_container() -> Object:
    """No way to more rights, and nothing of the image can be changed."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


# The objects of a pipeline on Kubernetes, as plain data.

FILE = "/etc/distributary/pipeline.yaml"
STOP_SECONDS = 300
_LONGEST = 40
_UNSAFE = re.compile(r"[^a-z0-9-]+")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Values:
    """What people change in a chart, either as it is or as a place to fill in."""

    image: Any
    namespace: Any
    secrets: Any
    """`envFrom` of the pod."""
    pull_secrets: Any
    resources: Any
    schedule: Any
    timezone: Any


def object_name(pipeline: str, settings: Kubernetes) -> str:
    """A DNS label for any pipeline; two pipelines never share one."""
    if settings.name is not None:
        return settings.name
    plain = _UNSAFE.sub("-", pipeline.lower()).strip("-")
    if plain == pipeline and len(plain) <= _LONGEST:
        return plain
    digits = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9].strip('-') or 'p'}-{digits}"


def plain_values(settings: Kubernetes) -> Values:
    """The values of the pipeline file."""
    given = settings.resources
    limits = {"memory": given.memory} | ({"cpu": given.cpu_limit} if given.cpu_limit else {})
    return Values(
        image=settings.image,
        namespace=settings.namespace,
        secrets=[{"secretRef": {"name": name}} for name in settings.secrets],
        pull_secrets=[{"name": name} for name in settings.pull_secrets],
        resources={"requests": {"cpu": given.cpu, "memory": given.memory}, "limits": limits},
        schedule=settings.schedule,
        timezone=settings.timezone,
    )


def manifests(
    pipeline: Installable, settings: Kubernetes, values: Values, *, file_text: str
) -> dict[str, Object]:
    """Every object by the name of its file, in the order in which they are needed."""
    name = object_name(pipeline.name, settings)
    made: dict[str, Object] = {}

    def add(kind: str, version: str, rest: Object, *, suffix: str = "") -> None:
        meta = {"name": f"{name}{suffix}", "namespace": values.namespace, "labels": _labels(name)}
        made[f"{kind.lower()}{suffix}"] = {
            "apiVersion": version,
            "kind": kind,
            "metadata": meta,
            **rest,
        }

    if settings.service_account is None:
        # only who starts executors talks to Kubernetes
        add("ServiceAccount", "v1", {"automountServiceAccountToken": False})
    if settings.spark.executors:
        rights = "rbac.authorization.k8s.io/v1"
        add("Role", rights, role())
        add("RoleBinding", rights, role_binding(name, settings, namespace=values.namespace))
        add("Service", "v1", {"spec": driver_service(_selector(name))}, suffix="-driver")
        files = spark_files(name, settings, image=values.image, namespace=values.namespace)
        add("ConfigMap", "v1", {"data": files}, suffix="-spark")
    add("ConfigMap", "v1", {"data": {"pipeline.yaml": file_text}})
    pod = _pod(name, settings, values, file_text=file_text)
    if settings.schedule is not None:
        add("CronJob", "batch/v1", {"spec": _cron_job(settings, values, pod)})
    else:
        add("Service", "v1", {"spec": _service(name, settings)})
        add("Deployment", "apps/v1", {"spec": _deployment(name, pod)})
    return made


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "distributary",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "distributary",
    }


def _selector(name: str) -> dict[str, str]:
    return {k: v for k, v in _labels(name).items() if not k.endswith("managed-by")}


def _deployment(name: str, pod: Object) -> Object:
    return {
        # a checkpoint has one owner: the old pod ends before the new one starts
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": _selector(name)},
        "template": pod,
    }


def _cron_job(settings: Kubernetes, values: Values, pod: Object) -> Object:
    return {
        "schedule": values.schedule,
        "timeZone": values.timezone,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 300,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {
            "spec": {
                "backoffLimit": settings.retries,
                # a mistake in the pipeline file is not tried again
                "podFailurePolicy": {
                    "rules": [
                        {
                            "action": "FailJob",
                            "onExitCodes": {
                                "containerName": "distributary",
                                "operator": "In",
                                "values": [2],
                            },
                        }
                    ]
                },
                "template": pod,
            }
        },
    }


def _service(name: str, settings: Kubernetes) -> Object:
    port = {"name": "health", "port": settings.port, "targetPort": "health"}
    return {"selector": _selector(name), "ports": [port]}


def _pod(name: str, settings: Kubernetes, values: Values, *, file_text: str) -> Object:
    timed = settings.schedule is not None
    digest = hashlib.sha256(file_text.encode()).hexdigest()
    spec: Object = {
        "serviceAccountName": settings.service_account or name,
        "automountServiceAccountToken": settings.spark.executors > 0,
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "securityContext": locked_pod(),
        "imagePullSecrets": values.pull_secrets,
        "containers": [_container(settings, values)],
        "volumes": _volumes(name, settings),
    }
    if timed:
        spec["restartPolicy"] = "Never"
    meta = {
        "labels": _labels(name),
        # a new file is a new pod
        "annotations": {"distributary/file": digest},
    }
    return {"metadata": meta, "spec": spec}


def _container(settings: Kubernetes, values: Values) -> Object:
    timed = settings.schedule is not None
    port = settings.port
    arguments = ["run", FILE, "--available-now"]
    if not timed:
        arguments = ["up", FILE, "--listen", f"0.0.0.0:{port}", "--log-format", "json"]
    container: Object = {
        "name": "distributary",
        "image": values.image,
        "args": arguments,
        "env": _environment(settings),
        "envFrom": values.secrets,
        "resources": values.resources,
        "securityContext": locked_container(),
        "volumeMounts": _mounts(settings),
    }
    if not timed:
        container["ports"] = [{"name": "health", "containerPort": port}]
        container |= {
            # Spark starts slowly on a busy node; nothing else may take so long
            "startupProbe": _probe("/live", period=5, failures=60),
            "livenessProbe": _probe("/live", period=20, failures=6),
            "readinessProbe": _probe("/ready", period=10, failures=3),
        }
    return container


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _environment(settings: Kubernetes) -> list[Object]:
    found: list[Object] = [{"name": "HOME", "value": "/tmp"}]  # noqa: S108 - the pod's own
    if settings.token_secret is not None:
        source = {"secretKeyRef": {"name": settings.token_secret, "key": "token"}}
        found.append({"name": "DISTRIBUTARY_TOKEN", "valueFrom": source})
    if settings.spark.executors:
        found += [
            {"name": "SPARK_CONF_DIR", "value": FOLDER},
            {"name": "DISTRIBUTARY_SPARK__MASTER", "value": MASTER},
        ]
    return found


def _mounts(settings: Kubernetes) -> list[Object]:
    found: list[Object] = [
        {"name": "pipeline", "mountPath": "/etc/distributary", "readOnly": True},
        # the only place of the image that can be written
        {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
    ]
    if settings.claim is not None:
        found.append({"name": "lake", "mountPath": "/lake"})
    if settings.spark.executors:
        found.append({"name": "spark", "mountPath": FOLDER, "readOnly": True})
    for number, secret in enumerate(settings.secret_files):
        place = f"/secrets/{secret}"
        found.append({"name": f"secret-{number}", "mountPath": place, "readOnly": True})
    return found


def _volumes(name: str, settings: Kubernetes) -> list[Object]:
    found: list[Object] = [
        {"name": "pipeline", "configMap": {"name": name}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if settings.claim is not None:
        found.append({"name": "lake", "persistentVolumeClaim": {"claimName": settings.claim}})
    if settings.spark.executors:
        found.append({"name": "spark", "configMap": {"name": f"{name}-spark"}})
    for number, secret in enumerate(settings.secret_files):
        mounted = {"secretName": secret, "defaultMode": 0o440}
        found.append({"name": f"secret-{number}", "secret": mounted})
    return found


NAME = "kubernetes"

_PLACE = "value-to-fill-in-"
_WHOLE = re.compile(rf"(?<=[:-] ){_PLACE}([A-Za-z]+)(?=\n)")
_INSIDE = re.compile(rf"{_PLACE}([A-Za-z]+)")
_FROM = {"namespace": ".Release.Namespace"}
_QUANTITY = {"type": ["string", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$"}
_AMOUNTS = {"type": "object", "additionalProperties": _QUANTITY}
_NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "image": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$"},
    "secrets": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"secretRef": _NAMED, "configMapRef": _NAMED, "prefix": {}},
            "additionalProperties": False,
        },
    },
    "pullSecrets": {"type": "array", "items": _NAMED},
    "resources": {
        "type": "object",
        "properties": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        "additionalProperties": False,
    },
    "schedule": {"type": "string", "minLength": 1},
    "timezone": {"type": "string", "minLength": 1},
}


def kubernetes_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Image, manifests and chart below one folder."""
    settings = pipeline.deploy.kubernetes
    if settings is None:
        raise ConfigError(
            "the pipeline file does not say which image to run",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where=f"{pipeline.path.name} deploy.kubernetes.image",
            next_step="add deploy: {kubernetes: {image: registry.example/games:1.0}}",
        )
    pipeline.refuse_clear_secrets(to="a config map")
    folder = (out or Path(f"{pipeline.name}-kubernetes")).absolute()
    place, image = shlex.quote(str(folder)), shlex.quote(settings.image)
    return FileTarget(
        NAME,
        pipeline.name,
        folder,
        tuple(
            Artifact(folder / name, text, 0o755 if name.endswith(".sh") else 0o644)
            for name, text in _files(pipeline, settings)
        ),
        ("*/*", "chart/templates/*"),
        next_steps=(
            f"distributary package {place}/image/{WHEEL}",
            f"docker build --tag {image} {place}/image",
            f"docker push {image}",
            f"kubectl apply --filename {place}/manifests",
        ),
        last_steps=(
            f"kubectl delete all,configmap,serviceaccount,role,rolebinding,cronjob "
            f"--namespace {settings.namespace} "
            f"--selector app.kubernetes.io/instance={object_name(pipeline.name, settings)}",
        ),
    )


def chart_values(settings: Kubernetes) -> dict[str, Any]:
    """The content of the chart's `values.yaml`."""
    values = plain_values(settings)
    timed = {"schedule": values.schedule, "timezone": values.timezone}
    return {
        "image": values.image,
        "secrets": values.secrets,
        "pullSecrets": values.pull_secrets,
        "resources": values.resources,
        **(timed if settings.schedule is not None else {}),
    }


def _files(pipeline: Installable, settings: Kubernetes) -> Iterator[tuple[str, str]]:
    yield "image/Dockerfile", dockerfile(settings.base_image)
    yield "image/entrypoint.sh", ENTRYPOINT
    plain = plain_values(settings)
    made = manifests(pipeline, settings, plain, file_text=pipeline.shared_text)
    for number, (name, content) in enumerate(made.items()):
        # kubectl takes files in the order of their names
        yield f"manifests/{number:02}-{name}.yaml", to_yaml(content)
    values = chart_values(settings)
    yield "chart/Chart.yaml", to_yaml(_chart(pipeline, settings))
    yield "chart/values.yaml", to_yaml(values)
    yield "chart/values.schema.json", json.dumps(_values_schema(values), indent=2) + "\n"
    places = manifests(pipeline, settings, _places(plain), file_text=pipeline.shared_text)
    for name, content in places.items():
        yield f"chart/templates/{name}.yaml", _template(to_yaml(content))


def _chart(pipeline: Installable, settings: Kubernetes) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": object_name(pipeline.name, settings),
        "description": f"Distributary pipeline {pipeline.name}",
        "type": "application",
        "version": distributary.__version__,
        "appVersion": distributary.__version__,
    }


def _values_schema(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["image", "resources"],
        # Helm adds `global` to the values of every chart
        "properties": {name: _SCHEMAS[name] for name in values} | {"global": {"type": "object"}},
        "additionalProperties": False,
    }


def _places(plain: Values) -> Values:
    timed = plain.schedule is not None
    return replace(
        plain,
        image=f"{_PLACE}image",
        namespace=f"{_PLACE}namespace",
        secrets=f"{_PLACE}secrets",
        pull_secrets=f"{_PLACE}pullSecrets",
        resources=f"{_PLACE}resources",
        schedule=f"{_PLACE}schedule" if timed else None,
        timezone=f"{_PLACE}timezone" if timed else plain.timezone,
    )


def _template(text: str) -> str:
    """A manifest as a template: braces of the pipeline file stay what they are."""
    escaped = text.replace("{{", '{{ "{{" }}')
    whole = _WHOLE.sub(lambda m: f"{{{{ {_source(m[1])} | toJson }}}}", escaped)
    return _INSIDE.sub(lambda m: f"{{{{ {_source(m[1])} }}}}", whole)


def _source(name: str) -> str:
    return _FROM.get(name, f".Values.{name}")
