"""Spark's executors as pods: what the driver's pod must be allowed, and what it must know."""

from __future__ import annotations

from typing import Any

from distributary.config.deploy_kubernetes import Kubernetes
from distributary.deploy.image import USER
from distributary.deploy.yaml_text import to_yaml

DRIVER_PORT, BLOCK_PORT = 7078, 7079
FOLDER = "/etc/spark"
MASTER = "k8s://https://kubernetes.default.svc"
_TEMPLATE = "executor.yaml"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

Object = dict[str, Any]


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
    return {"spark-defaults.conf": lines, _TEMPLATE: to_yaml(_template(settings))}


def _template(settings: Kubernetes) -> Object:
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
