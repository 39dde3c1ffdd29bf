"""The files of `install --target kubernetes`: an image, plain manifests, and a chart of the same.

A template of the chart is the manifest with placeholders. Rendered with the chart's own values, it
gives the manifests.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from ruamel.yaml import YAML

import distributary
from distributary.config.deploy import Executors, Kubernetes, ServiceMonitor, Toleration
from distributary.config.file.document import to_yaml
from distributary.deploy.file_targets import Artifact, FileTarget, template
from distributary.deploy.package import WHEEL
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, ErrorCode

NAME = "kubernetes"
USER = 10001
"""The id of the pods' user: neither root nor a user of the base image."""
FILE = "/etc/distributary/pipeline.yaml"
SPARK_FOLDER = "/etc/spark"

_PINNED = "# the digest fixes the image; renew it from time to time, for Debian's security updates"
_UNPINNED = """\
# NOT PINNED: a tag may name another image tomorrow. Look its digest up (docker buildx imagetools
# inspect NAME:TAG) and set deploy.kubernetes.base_image: NAME:TAG@sha256:DIGEST"""
_LONGEST = 40
_JVM_OVERHEAD, _PYTHON_WORKER = 384, 1024
"""Memory of an executor beside the heap of its JVM, in MiB: of the JVM, and of a Python worker."""
_EXECUTOR = "distributary/executor-of"
_DRIVER_PORTS = (7078, 7079)
_UNSAFE = re.compile(r"[^a-z0-9-]+")
_ON_THE_CLAIM = re.compile(r"(?<![\w.:/-])(?:file:(?://)?)?/lake(?![\w.-])")

Object = dict[str, Any]


def dockerfile(base: str) -> str:
    """Return the Dockerfile: Python, Java, this version and its JVM connectors.

    No pipeline, no secret.
    """
    pinned = _PINNED if "@sha256:" in base else _UNPINNED
    return template("Dockerfile", pinned=pinned, base=base, wheel=WHEEL, user=USER)


def object_name(pipeline: str, settings: Kubernetes) -> str:
    """Return a DNS label for a pipeline; two pipelines never share one."""
    if settings.name is not None:
        return settings.name
    plain = _UNSAFE.sub("-", pipeline.lower()).strip("-")
    if plain == pipeline and len(plain) <= _LONGEST:
        return plain
    digits = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9].strip('-') or 'p'}-{digits}"


def chart_values(settings: Kubernetes) -> Object:
    """Return the content of the chart's `values.yaml`, which users may change."""
    given = settings.resources
    limits = {"memory": given.memory} | ({"cpu": given.cpu_limit} if given.cpu_limit else {})
    timed = {"schedule": settings.schedule, "timezone": settings.timezone}
    return {
        "image": settings.image,
        "secrets": [{"secretRef": {"name": name}} for name in settings.secrets],
        "pullSecrets": [{"name": name} for name in settings.pull_secrets],
        "resources": {"requests": {"cpu": given.cpu, "memory": given.memory}, "limits": limits},
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [_toleration(each) for each in settings.tolerations],
        "affinity": dict(settings.affinity),
        "accountAnnotations": dict(settings.service_account_annotations),
        **(_executor_values(settings.spark) if settings.spark.executors else {}),
        **(timed if settings.schedule is not None else {}),
    }


def _toleration(toleration: Toleration) -> Object:
    found = toleration.model_dump(exclude_none=True)
    if "seconds" in found:
        found["tolerationSeconds"] = found.pop("seconds")
    return found


def _executor_values(spark: Executors) -> Object:
    # Spark's own default, a tenth of the JVM's memory, is not enough for one Python worker.
    overhead = spark.memory_overhead or f"{_JVM_OVERHEAD + _PYTHON_WORKER * spark.cores}m"
    return {
        "executors": spark.executors,
        "executorCores": spark.cores,
        "executorMemory": spark.memory,
        "executorMemoryOverhead": overhead,
    }


def manifests(pipeline: Installable, settings: Kubernetes, chosen: Object) -> dict[str, Object]:
    """Return every object by the name of its file.

    `chosen` is the namespace and the chart's values.
    """
    timed, executors = settings.schedule is not None, settings.spark.executors > 0
    objects: dict[str, Object] = YAML(typ="safe", pure=True).load(template("kubernetes.yaml"))
    values = _values(pipeline, settings) | chosen
    executor = _filled(objects.pop("executor"), values)
    values |= {
        "executor": to_yaml(executor),
        "spark_defaults": _spark_defaults(values, settings) if executors else "",
    }
    left_out = {"service", "deployment"} if timed else {"cronjob"}
    if not executors:
        left_out |= {"role", "rolebinding", "service-driver", "configmap-spark"}
    if settings.service_monitor is None:
        left_out.add("servicemonitor")
    if not settings.network_policy:
        left_out |= {"networkpolicy", "networkpolicy-executors"}
    if not executors:
        left_out.add("networkpolicy-executors")
    if settings.service_account is not None:
        left_out.add("serviceaccount")
    made = {name: _filled(node, values) for name, node in objects.items() if name not in left_out}
    if timed:
        spec = made["cronjob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for name in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
            del spec["containers"][0][name]
    else:
        del made["deployment"]["spec"]["template"]["spec"]["restartPolicy"]
    return made


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the template with its `$names` replaced."""
    if isinstance(node, dict):
        return {key: _filled(item, values) for key, item in node.items()}
    if isinstance(node, list):
        made: list[Any] = []
        for item in node:
            part = _filled(item, values)
            made += part if isinstance(part, list) else [] if part is None else [part]
        return made
    if not isinstance(node, str):
        return node
    whole = node.removeprefix("$")
    return values[whole] if whole != node and whole in values else Template(node).substitute(values)


def _values(pipeline: Installable, settings: Kubernetes) -> Object:
    """Return the values of the template that users cannot choose."""
    name, executors = object_name(pipeline.name, settings), settings.spark.executors > 0
    arguments = ["run", FILE, "--available-now"]
    if settings.schedule is None:
        listen = f"0.0.0.0:{settings.port}"
        arguments = ["up", FILE, "--listen", listen, "--log-format", "json"]
    env: list[Object] = []
    if settings.token_secret is not None:
        source = {"secretKeyRef": {"name": settings.token_secret, "key": "token"}}
        env.append({"name": "DISTRIBUTARY_TOKEN", "valueFrom": source})
    mounts: list[Object] = []
    volumes: list[Object] = []
    if executors:
        env += [
            {"name": "SPARK_CONF_DIR", "value": SPARK_FOLDER},
            {
                "name": "DISTRIBUTARY_SPARK__MASTER",
                "value": "k8s://https://kubernetes.default.svc",
            },
            {
                "name": "DISTRIBUTARY_POD",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
            },
            # the driver's pod owns the executors, so that they are deleted with it; Kubernetes
            # fills in its name, which is not known before
            {
                "name": "PYSPARK_SUBMIT_ARGS",
                "value": "--conf spark.kubernetes.driver.pod.name=$(DISTRIBUTARY_POD) "
                "pyspark-shell",
            },
        ]
        mounts.append({"name": "spark", "mountPath": SPARK_FOLDER, "readOnly": True})
        volumes.append({"name": "spark", "configMap": {"name": f"{name}-spark"}})
    for number, secret in enumerate(settings.secret_files):
        place = {"mountPath": f"/secrets/{secret}", "readOnly": True}
        mounts.append({"name": f"secret-{number}", **place})
        mounted = {"secretName": secret, "defaultMode": 0o440}
        volumes.append({"name": f"secret-{number}", "secret": mounted})
    claim = {"claimName": settings.claim}
    lake = settings.claim is not None and _uses_claim(pipeline)
    selector = {"app.kubernetes.io/name": "distributary", "app.kubernetes.io/instance": name}
    monitor = settings.service_monitor or ServiceMonitor()
    labels = selector | {"app.kubernetes.io/managed-by": "distributary"}
    interval = f"{int(monitor.interval.total_seconds() * 1000)}ms"
    return {
        "name": name,
        "labels": labels,
        "selector": selector,
        "account": settings.service_account or name,
        "file": pipeline.shared_text,
        "digest": hashlib.sha256(pipeline.shared_text.encode()).hexdigest(),
        "user": USER,
        "has_executors": executors,
        "executor_labels": {_EXECUTOR: name},
        # removal finds the objects by labels of ours
        "monitor_labels": labels | dict(monitor.labels) | labels,
        "monitor_interval": interval,
        "token_secret": settings.token_secret,
        "ingress": _ingress(settings, name),
        "args": arguments,
        "env": env,
        "port": settings.port,
        "retries": settings.retries,
        "lake_mount": {"name": "lake", "mountPath": "/lake"} if lake else None,
        "lake_volume": {"name": "lake", "persistentVolumeClaim": claim} if lake else None,
        "mounts": mounts,
        "volumes": volumes,
    }


def _ingress(settings: Kubernetes, name: str) -> list[Object]:
    """Return the connections to the pod that a network policy allows."""
    allowed: list[Object] = []
    if settings.schedule is None:
        # The nodes ask the probes from outside of every namespace.
        allowed.append({"ports": [{"port": settings.port, "protocol": "TCP"}]})
    if settings.spark.executors:
        ports = [{"port": port, "protocol": "TCP"} for port in _DRIVER_PORTS]
        source = {"podSelector": {"matchLabels": {_EXECUTOR: name}}}
        allowed.append({"from": [source], "ports": ports})
    return allowed


def _uses_claim(pipeline: Installable) -> bool:
    """Return whether a path of the file is on the claim.

    With all in a bucket no pod needs a volume.
    """
    return not pipeline.lake or _ON_THE_CLAIM.search(pipeline.shared_text) is not None


def _spark_defaults(values: Object, settings: Kubernetes) -> str:
    spark = settings.spark
    conf = {
        "spark.kubernetes.container.image": values["image"],
        "spark.kubernetes.namespace": values["namespace"],
        "spark.kubernetes.authenticate.executor.serviceAccountName": values["account"],
        "spark.kubernetes.executor.podTemplateFile": f"{SPARK_FOLDER}/executor.yaml",
        "spark.executor.instances": values["executors"],
        "spark.executor.cores": values["executorCores"],
        "spark.executor.memory": values["executorMemory"],
        "spark.executor.memoryOverhead": values["executorMemoryOverhead"],
        "spark.driver.host": f"{values['name']}-driver.{values['namespace']}.svc",
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - executors are other pods
        # the ports of the service through which executors find the driver
        "spark.driver.port": _DRIVER_PORTS[0],
        "spark.driver.blockManager.port": _DRIVER_PORTS[1],
        **spark.conf,
    }
    return "".join(f"{key} {value}\n" for key, value in conf.items())


_PLACE = "value-to-fill-in-"
_WHOLE = re.compile(rf"(?<=[:-] ){_PLACE}([A-Za-z]+)(?=\n)")
_INSIDE = re.compile(rf"{_PLACE}([A-Za-z]+)")
_FROM = {"namespace": ".Release.Namespace"}
_QUANTITY = {"type": ["string", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$"}
_AMOUNTS = {"type": "object", "additionalProperties": _QUANTITY}
_NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_JVM_MEMORY = {"type": "string", "pattern": "^[0-9]{1,9}[kmgt]$"}
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
    "nodeSelector": _TEXTS,
    "tolerations": {"type": "array", "items": {"type": "object"}},
    "affinity": {"type": "object"},
    "accountAnnotations": _TEXTS,
    "executors": {"type": "integer", "minimum": 1},
    "executorCores": {"type": "integer", "minimum": 1},
    "executorMemory": _JVM_MEMORY,
    "executorMemoryOverhead": _JVM_MEMORY,
    "schedule": {"type": "string", "minLength": 1},
    "timezone": {"type": "string", "minLength": 1},
}


def kubernetes_target(pipeline: Installable, *, out: Path | None = None) -> FileTarget:
    """Return the target with image, manifests and chart below one folder."""
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
            f"kubectl delete {_kinds(settings)} "
            f"--namespace {settings.namespace} "
            f"--selector app.kubernetes.io/instance={object_name(pipeline.name, settings)}",
        ),
    )


def _kinds(settings: Kubernetes) -> str:
    """Return the kinds of objects that a removal deletes; kubectl refuses one it does not know."""
    monitor = ("servicemonitor",) if settings.service_monitor is not None else ()
    kinds = ("configmap", "serviceaccount", "role", "rolebinding", "cronjob", "networkpolicy")
    return ",".join(("all", *kinds, *monitor))


def _files(pipeline: Installable, settings: Kubernetes) -> Iterator[tuple[str, str]]:
    yield "image/Dockerfile", dockerfile(settings.base_image)
    yield "image/entrypoint.sh", template("entrypoint.sh")
    values = chart_values(settings)
    made = manifests(pipeline, settings, {"namespace": settings.namespace, **values})
    for number, (name, content) in enumerate(made.items()):
        # kubectl applies files in the order of their names
        yield f"manifests/{number:02}-{name}.yaml", to_yaml(content)
    yield "chart/Chart.yaml", to_yaml(_chart(pipeline, settings))
    yield "chart/values.yaml", to_yaml(values)
    yield "chart/values.schema.json", json.dumps(_values_schema(values), indent=2) + "\n"
    places = {name: f"{_PLACE}{name}" for name in ("namespace", *values)}
    for name, content in manifests(pipeline, settings, places).items():
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


def _template(text: str) -> str:
    """Return a manifest as a template; braces of the pipeline file are escaped."""
    escaped = text.replace("{{", '{{ "{{" }}')
    whole = _WHOLE.sub(lambda m: f"{{{{ {_source(m[1])} | toJson }}}}", escaped)
    return _INSIDE.sub(lambda m: f"{{{{ {_source(m[1])} }}}}", whole)


def _source(name: str) -> str:
    return _FROM.get(name, f".Values.{name}")
