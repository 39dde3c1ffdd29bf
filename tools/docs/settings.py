"""The reference of the pipeline file, written from its models so that it cannot drift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from distributary.config.base import Section
from distributary.config.file.show import descriptions
from distributary.config.load import (
    alternatives,
    default_of,
    is_secret,
    is_union,
    models_of,
    settings,
    tag_of,
)
from distributary.config.pipeline_config import PipelineConfig

_INTRODUCTION = """\
# Settings of the pipeline file

Unknown keys are refused. A value comes from, strongest first: a flag of the command, the variable
`DISTRIBUTARY_<SECTION>__<KEY>`, the file, the default. In any text of the file, `${env:NAME}`,
`${env:NAME:-default}`, `${file:PATH}` and `${databricks:SCOPE/KEY}` are replaced when the file is
loaded; `$${` is a literal `${`. A value that comes out empty counts as not set.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *_section_page((PipelineConfig,), "")]).rstrip() + "\n"


def _section_page(models: tuple[type[Section], ...], path: str) -> Iterator[str]:
    for model in models:
        kind = f" (type: {tag_of(model)})" if is_union(models) else ""
        yield f"## {f'`{path}`' if path else 'The file'}{kind}\n"
        yield f"{_one_line(model.__doc__)}\n"
        yield "| key | default | meaning |"
        yield "|---|---|---|"
        about = descriptions(model)
        yield from (_row(key, info, about[key]) for key, info in settings((model,)).items())
        yield ""
        for key, info in settings((model,)).items():
            yield from _section_page(models_of(info), f"{path}.{key}" if path else key)


def _row(key: str, info: Any, about: str) -> str:
    notes = [_one_line(about), _words(info.annotation)]
    if is_secret(info):
        notes.append("A secret: never shown.")
    if info.examples:
        examples = ", ".join(f"`{_plain(example)}`" for example in info.examples)
        notes.append(f"For example {examples}.")
    return f"| `{key}` | {_default(info)} | {_cell(' '.join(filter(None, notes)))} |"


def _default(info: Any) -> str:
    if info.is_required():
        return "required"
    default = default_of(info)
    return "" if default in (None, "", ()) else f"`{_cell(_plain(default))}`"


def _plain(value: Any) -> str:
    """A value as it would be written in the file."""
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def _words(annotation: Any) -> str:
    """The words to choose from; empty when anything else is possible too."""
    parts = [part for part in alternatives(annotation) if part is not NoneType]
    inner = [item for part in parts if get_origin(part) is tuple for item in get_args(part)[:1]]
    choices = inner or parts
    words = [word for part in choices if get_origin(part) is Literal for word in get_args(part)]
    if len(words) < 2 or any(get_origin(part) is not Literal for part in choices):
        return ""
    return f"{'Any' if inner else 'One'} of {', '.join(f'`{word}`' for word in words)}."


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
