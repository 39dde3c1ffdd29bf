"""The objects of a pipeline on Kubernetes, as plain data."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from distributary.config.deploy_kubernetes import Kubernetes
from distributary.deploy.kubernetes_spark import (
    FOLDER,
    MASTER,
    driver_service,
    locked_container,
    locked_pod,
    role,
    role_binding,
    spark_files,
)
from distributary.deploy.pipeline_file import Installable

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
