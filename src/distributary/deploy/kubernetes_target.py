"""The files of `install --target kubernetes`: an image, plain manifests, and a chart of the same.

A template of the chart is the manifest itself with places to fill in: rendered with the values
beside it, the chart is the manifests.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributary
from distributary.config.deploy_kubernetes import Kubernetes
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.image import ENTRYPOINT, dockerfile
from distributary.deploy.kubernetes import Values, manifests, object_name, plain_values
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.wheel import WHEEL
from distributary.deploy.yaml_text import to_yaml
from distributary.errors import ConfigError, ErrorCode

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
