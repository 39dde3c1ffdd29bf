"""The JSON schema of the pipeline file, for editors."""

from __future__ import annotations

from typing import Any

from distributary.config.base import Section
from distributary.config.fields import default_of, every_model, settings
from distributary.config.pipeline import PipelineConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_VARIABLE = {
    "title": "Variable",
    "description": "Text with ${env:NAME}, ${env:NAME:-default} or ${file:PATH} in it.",
    "type": "string",
    "pattern": r"\$\{(env|file|databricks):",
}
_VARIABLE_REF = {"$ref": "#/$defs/Variable"}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})


def json_schema() -> dict[str, Any]:
    """Draft 2020-12 with titles, descriptions, defaults and examples.

    `${...}` is allowed wherever a number, a word or a list is expected.
    """
    schema = PipelineConfig.model_json_schema(by_alias=True)
    found = schema.pop("$defs") | {PipelineConfig.__name__: schema}
    sections = {model.__name__: _section(found[model.__name__], model) for model in every_model()}
    return {
        "$schema": DIALECT,
        **sections.pop(PipelineConfig.__name__),
        "title": "Distributary pipeline",
        "$defs": {**sections, "Variable": _VARIABLE},
    }


def _section(schema: dict[str, Any], model: type[Section]) -> dict[str, Any]:
    properties = {key: _setting(value) for key, value in schema["properties"].items()}
    for key, info in settings((model,)).items():
        properties[key].pop("default", None)
        if (default := default_of(info)) is not None:
            properties[key]["default"] = list(default) if isinstance(default, tuple) else default
    return schema | {"properties": properties}


def _setting(schema: dict[str, Any]) -> dict[str, Any]:
    """One setting: its alternatives, and a variable where plain text is not among them."""
    about = {key: value for key, value in schema.items() if key in _ANNOTATIONS}
    # a variable as the tag of a union fits all its members: `oneOf` would refuse it
    found = schema.get("anyOf") or schema.get("oneOf") or [_without_annotations(schema)]
    alternatives = [_alternative(value) for value in _flat(found)]
    if not all(map(_is_mapping, alternatives)) and not any(map(_takes_text, alternatives)):
        alternatives.append(_VARIABLE_REF)
    return about | (alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives})


def _flat(alternatives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [leaf for a in alternatives for leaf in (_flat(a["anyOf"]) if "anyOf" in a else [a])]


def _alternative(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("format") == "password":
        # secrets and free-form options are text, which YAML may read as a number
        return schema | {"type": ["string", "number", "boolean"]}
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            schema = schema | {inner: _setting(schema[inner])}
    return schema


def _is_mapping(schema: dict[str, Any]) -> bool:
    return "$ref" in schema or schema.get("type") in ("object", "null")


def _takes_text(schema: dict[str, Any]) -> bool:
    limited = any(key in schema for key in ("const", "enum", "pattern"))
    return "string" in schema.get("type", "") and not limited


def _without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
