"""Lists settings with values and origins, their descriptions, and the JSON schema of the file."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from distributary.config.base import MASK, Section, hide, hide_credentials, is_sealed
from distributary.config.file.document import SettingOrigin
from distributary.config.load import Loaded, default_of, every_model, is_secret, settings
from distributary.config.pipeline_config import PipelineConfig


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `validate --show-config`."""

    key: str
    value: Any
    """The value as in JSON; `***` for a secret."""
    origin: SettingOrigin

    @property
    def text(self) -> str:
        """Return the value for the terminal."""
        match self.value:
            case None | {} if not self.value:
                return ""
            case bool():
                return str(self.value).lower()
            case list():
                return ", ".join(map(str, self.value))
        return str(self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return the row for `--json`."""
        return {"key": self.key, "value": self.value, "origin": self.origin.as_dict()}


def rows(loaded: Loaded) -> tuple[Row, ...]:
    """Return all settings in the order of the models."""
    plain = loaded.config.model_dump(mode="json", by_alias=True)
    return tuple(_section(loaded, loaded.config, plain, ""))


def as_json(loaded: Loaded) -> dict[str, Any]:
    """Return all settings and warnings as one JSON document."""
    return {
        "version": 1,
        "file": loaded.file,
        "settings": [row.as_dict() for row in rows(loaded)],
        "warnings": [warning.as_dict() for warning in loaded.warnings],
    }


def _section(
    loaded: Loaded, section: Section, plain: Mapping[str, Any], prefix: str
) -> Iterator[Row]:
    for name, info in type(section).model_fields.items():
        key, value = info.alias or name, getattr(section, name)
        path = f"{prefix}{key}"
        if isinstance(value, Section):
            yield from _section(loaded, value, plain[key], f"{path}.")
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            for index, item in enumerate(value):
                yield from _section(loaded, item, plain[key][index], f"{path}[{index}].")
        elif isinstance(value, Mapping) and value:
            yield from _options(loaded, info, value, plain[key], path)
        else:
            origin = _origin(loaded, path, given=name in section.model_fields_set)
            hidden = value is not None and (is_secret(info) or origin.secret)
            yield Row(path, MASK if hidden else _safe(loaded, plain[key]), origin)


def _options(
    loaded: Loaded,
    info: FieldInfo,
    options: Mapping[Any, Any],
    plain: Mapping[str, Any],
    path: str,
) -> Iterator[Row]:
    for (key, value), shown in zip(options.items(), plain.values(), strict=True):
        below = f"{path}.{key}"
        origin = _origin(loaded, below, given=True)
        clear = value.get_secret_value() if isinstance(value, SecretStr) else shown
        safe = hide(str(key), clear) if isinstance(clear, str) else clear
        hidden = origin.secret or is_sealed(info.metadata, str(key))
        yield Row(below, MASK if hidden else _safe(loaded, safe), origin)


def _origin(loaded: Loaded, path: str, *, given: bool) -> SettingOrigin:
    # a section may be written in short, as a single word: then its origin is that of the word
    short = given and path not in loaded.origins
    return loaded.origin(path.rpartition(".")[0] if short else path)


def _safe(loaded: Loaded, value: Any) -> Any:
    if isinstance(value, str):
        # a default may be derived from a value that is secret
        return loaded.mask(hide_credentials(value))
    return [_safe(loaded, item) for item in value] if isinstance(value, list) else value


# Descriptions of settings: the strings below them in the models. Pydantic would read the source of
# every model at import, which takes longer than loading a file.


def descriptions(model: type[Section]) -> dict[str, str]:
    """Return the description of each setting of a model, by its key in the file."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Section):
            texts |= _texts(base.__module__).get(base.__name__, {})
    return {
        info.alias or name: info.description or texts.get(name, "")
        for name, info in model.model_fields.items()
    }


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the string below each annotated name, by class."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        # without source files nothing is described, and everything else works
        return {}
    return {
        node.name: {
            before.target.id: inspect.cleandoc(after.value.value)
            for before, after in pairwise(node.body)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(after.value.value, str)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


# The JSON schema of the pipeline file, for editors.

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
    """Return the JSON schema (draft 2020-12), with titles, descriptions, defaults and examples.

    `${...}` is allowed wherever a number, a word or a list is expected.
    """
    schema = PipelineConfig.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs") | {PipelineConfig.__name__: schema}
    sections = {
        model.__name__: _section_schema(definitions[model.__name__], model)
        for model in every_model()
    }
    return {
        "$schema": DIALECT,
        **sections.pop(PipelineConfig.__name__),
        "title": "Distributary pipeline",
        "$defs": {**sections, "Variable": _VARIABLE},
    }


def _section_schema(schema: dict[str, Any], model: type[Section]) -> dict[str, Any]:
    properties = {key: _setting(value) for key, value in schema["properties"].items()}
    about = descriptions(model)
    for key, info in settings((model,)).items():
        properties[key]["description"] = about[key]
        properties[key].pop("default", None)
        if (default := default_of(info)) is not None:
            properties[key]["default"] = list(default) if isinstance(default, tuple) else default
    return schema | {"properties": properties}


def _setting(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting, with `${...}` added where plain text is not allowed."""
    about = {key: value for key, value in schema.items() if key in _ANNOTATIONS}
    bare = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    # `oneOf` would refuse a variable as the tag of a union, because it fits all members
    choices = schema.get("anyOf") or schema.get("oneOf") or [bare]
    alternatives = [_alternative(value) for value in _flat(choices)]
    mappings = ["$ref" in a or a.get("type") in ("object", "null") for a in alternatives]
    if not all(mappings) and not any(map(_takes_text, alternatives)):
        alternatives.append(_VARIABLE_REF)
    return about | (alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives})


def _flat(alternatives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [leaf for a in alternatives for leaf in (_flat(a["anyOf"]) if "anyOf" in a else [a])]


def _alternative(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("format") == "password":
        # YAML may read the text of a secret or a free-form option as a number
        return schema | {"type": ["string", "number", "boolean"]}
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            schema = schema | {inner: _setting(schema[inner])}
    return schema


def _takes_text(schema: dict[str, Any]) -> bool:
    limited = any(key in schema for key in ("const", "enum", "pattern"))
    return "string" in schema.get("type", "") and not limited
