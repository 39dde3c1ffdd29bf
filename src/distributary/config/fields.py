"""What the models say about a setting: its section, its default, whether it is secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import PlainSerializer, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from distributary.config.base import Section
from distributary.config.node import Node, Path
from distributary.config.pipeline import PipelineConfig

Models = tuple[type[Section], ...]
"""The models that a mapping may be: several for a source, one elsewhere, none for a scalar."""

ROOT: Models = (PipelineConfig,)


def settings(models: Models) -> dict[str, FieldInfo]:
    """Key and field of everything that may be set; of all models where there are several."""
    return {
        info.alias or name: info for model in models for name, info in model.model_fields.items()
    }


def models_of(info: FieldInfo) -> Models:
    """The models of a setting's value, or of the items of a list."""
    parts = (*alternatives(info.annotation), *_items(info))
    return tuple(part for part in parts if _is_section(part))


def is_list_of_sections(info: FieldInfo) -> bool:
    """Whether each item of the value is a mapping of settings, as in `alerts.to`."""
    return any(map(_is_section, _items(info)))


def is_free_form(info: FieldInfo) -> bool:
    """Whether the keys below are the user's own, as in `spark.conf`."""
    return any(get_origin(part) is Mapping for part in alternatives(info.annotation))


def is_free_form_option(path: Path) -> bool:
    """Whether a path is that of an option whose name does not tell if its value is secret."""
    models = ROOT
    for part in path:
        info = settings(models).get(part) if isinstance(part, str) else None
        if info is not None:
            maps = (p for p in alternatives(info.annotation) if get_origin(p) is Mapping)
            if any(get_args(each)[1] is SecretStr for each in maps):
                return True
            models = models_of(info)
    return False


def holds_secret(path: Path) -> bool:
    """Whether the value at a path is a secret, or an option that may be one."""
    models = ROOT
    for part in path:
        info = settings(models).get(part) if isinstance(part, str) else None
        if info is not None:
            if is_secret(info):
                return True
            models = models_of(info)
    return is_free_form_option(path)


def is_secret(info: FieldInfo) -> bool:
    """Whether the value itself is a secret."""
    return any(part is SecretStr for part in alternatives(info.annotation))


def default_of(info: FieldInfo) -> Any:
    """The default as it would be written in the file; None when there is none to write."""
    default = None if info.default is PydanticUndefined else info.default
    serializer = next((m.func for m in info.metadata if isinstance(m, PlainSerializer)), None)
    # the functions of our own types take the value alone
    return default if default is None or serializer is None else serializer(default)  # type: ignore[call-arg]


def every_model(models: Models = ROOT) -> Iterator[type[Section]]:
    """All models of the file, outer before inner."""
    for model in models:
        yield model
        for info in settings((model,)).values():
            yield from every_model(models_of(info))


def chosen(models: Models, node: Node) -> Models:
    """The one model that a `type` names; all of them when it names none."""
    if len(models) < 2:
        return models
    named = node.entries.get("type")
    tags = {tag_of(model): model for model in models}
    model = tags.get(str(named.value)) if named else None
    return (model,) if model else models


def tag_of(model: type[Section]) -> str:
    """The literal that a model's `type` must be."""
    return str(get_args(model.model_fields["type"].annotation)[0])


def split_key(key: str) -> tuple[str, ...]:
    """`spark.conf.spark.sql.x` to its path: below a free-form setting, dots belong to the key."""
    models, path, rest = ROOT, list[str](), key.split(".")
    while rest:
        path.append(rest.pop(0))
        info = settings(models).get(path[-1])
        if info is None or not rest:
            continue
        if is_free_form(info):
            return (*path, ".".join(rest))
        models = models_of(info)
    return tuple(path)


def every_setting(models: Models = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all settings."""
    for key, info in settings(models).items():
        yield (*path, key)
        yield from every_setting(models_of(info), (*path, key))


def is_union(models: Iterable[type[Section]]) -> bool:
    """Whether pydantic puts the tag of the chosen model into its paths."""
    return len(tuple(models)) > 1


def _items(info: FieldInfo) -> Iterator[Any]:
    for part in alternatives(info.annotation):
        if get_origin(part) is tuple:
            yield from alternatives(get_args(part)[0])


def _is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Section)


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the type itself; what is inside lists and mappings stays there."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from alternatives(part)
    else:
        yield annotation
