"""Compiles a JSON Schema and what it refers to into one text that stands for itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import urldefrag

from distributary.errors import InvalidSchemaError
from distributary.registry.hostile import printable
from distributary.registry.json_documents import DRAFTS, Documents
from distributary.registry.json_walk import UnfitSchemaError, check_parts

MAX_LEVELS = 100
"""How deep the text of a schema may nest."""
_NO_IMPORTS: Mapping[str, str] = MappingProxyType({})
_DEFAULT_DRAFT = 7
_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](0?4|0?6|0?7|2019-09|2020-12)/schema#?")
_META = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


@dataclass(frozen=True, slots=True)
class CompiledJson:
    """A compiled schema."""

    body: bytes
    """JSON with the schema, the documents that it refers to, and the draft it is written in."""
    message: str
    """The schema's title; without one the last part of its `$id`, and `value` without either."""


def compile_json(text: str, *, imports: Mapping[str, str] = _NO_IMPORTS) -> CompiledJson:
    """Compile a schema of draft 4, 6, 7, 2019-09 or 2020-12; without `$schema` it is a draft 7.

    Args:
        text: The schema's JSON.
        imports: The texts of the schemas it refers to, by the name that a `$ref` has for them.

    Raises:
        InvalidSchemaError: When the text is not a schema, or a `$ref` leads to none of the imports.
    """
    return _compile(text, tuple(sorted(imports.items())))


@lru_cache(maxsize=4096)
def _compile(text: str, imports: tuple[tuple[str, str], ...]) -> CompiledJson:
    content = _parsed(text, "the schema")
    if not isinstance(content, dict | bool):
        raise _invalid("a JSON Schema is an object or a boolean", "the schema", "something else")
    references = {name: _parsed(each, f"reference {name}") for name, each in imports}
    draft = _draft(content)
    if isinstance(content, dict) and "$schema" in content:
        # as the validator spells it
        content = {**content, "$schema": _META[draft]}
    try:
        documents = Documents(content, draft=draft, references=references)
        _ = documents.validator
        check_parts(documents)
    except (ValueError, UnfitSchemaError, RecursionError) as error:
        reason = str(error).split("\n\n", maxsplit=1)[0]
        raise _invalid("the text is not a usable JSON Schema", "the schema", reason) from None
    return CompiledJson(documents.body, message_of(content))


def _parsed(text: str, what: str) -> Any:
    try:
        content = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        evidence = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _invalid("the text of a schema is not JSON", what, evidence) from None
    except (ValueError, RecursionError) as error:
        evidence = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise _invalid("the text of a schema is not JSON", what, evidence) from None
    if _levels(content) > MAX_LEVELS:
        raise _invalid("a JSON Schema nests too deep", what, f"more than {MAX_LEVELS} levels")
    return content


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is beyond what a double can hold")
    return number


def _levels(content: Any) -> int:
    deepest, waiting = 0, [(content, 1)]
    while waiting:
        value, level = waiting.pop()
        if isinstance(value, dict | list):
            deepest = max(deepest, level)
            below = value.values() if isinstance(value, dict) else value
            waiting += [(each, level + 1) for each in below]
    return deepest


def _draft(content: Any) -> int:
    said = content.get("$schema") if isinstance(content, dict) else None
    if said is None:
        return _DEFAULT_DRAFT
    known = _DRAFT.fullmatch(said) if isinstance(said, str) else None
    if known is None:
        evidence = f"$schema {said!r}; known drafts: {', '.join(map(str, DRAFTS))}"
        raise _invalid("a JSON Schema is of a draft that is not known", "the schema", evidence)
    return int(known[1].split("-")[0])


def message_of(content: Any) -> str:
    """What payloads of a schema are called."""
    words = content if isinstance(content, dict) else {}
    title = words.get("title")
    if isinstance(title, str) and title.strip():
        return " ".join(title.split())
    own = words.get("$id", words.get("id"))
    path = urldefrag(own).url.rstrip("/") if isinstance(own, str) else ""
    name = re.sub(r"(\.schema)?\.json$", "", re.split(r"[/:]", path)[-1])
    return name or "value"


def _invalid(what: str, where: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        what,
        where=printable(where),
        evidence=printable(evidence),
        next_step="mend the schema and register it again",
    )
