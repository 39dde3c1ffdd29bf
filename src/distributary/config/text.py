"""Kinds of text that settings are made of, each with a sentence for what it refuses."""

from __future__ import annotations

import re
from typing import Annotated, LiteralString
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from distributary.config.near import nearest

PLACEHOLDERS = ("type", "topic", "record", "database", "schema", "table")
"""What the template of a table name may contain, in braces."""
SUBJECT_PLACEHOLDERS = ("topic", "type", "record")
"""The same for a subject."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,119}")
_PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CONTEXT = re.compile(r"\.[A-Za-z0-9_.+~-]{1,200}")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def matching(pattern: re.Pattern[str], code: LiteralString, words: LiteralString) -> AfterValidator:
    """Refuses text that the whole of a pattern does not fit, in these words."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise PydanticCustomError(code, words)
        return value

    return AfterValidator(check)


def one_line(value: str) -> str:
    """Text without line breaks and control characters, which could forge options or output."""
    stripped = value.strip()
    if not stripped:
        raise PydanticCustomError("blank", "must not be empty")
    if not stripped.isprintable():
        raise PydanticCustomError("unprintable", "must be one line of printable text")
    return stripped


def split(value: object) -> object:
    """`a, b` to a list: a variable can then hold several names."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def placeholders(template: str) -> tuple[str, ...]:
    """The names in braces."""
    return tuple(_PLACEHOLDER.findall(template))


def _table_name(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise PydanticCustomError(
            "table_name", "must start with a letter, then letters, digits and _ (120 at most)"
        )
    return value


def _table_prefix(value: str) -> str:
    return _table_name(value) if value else value


def _table_template(value: str) -> str:
    _known_placeholders(value, PLACEHOLDERS)
    # each placeholder becomes a safe name: what is left over must be one too
    _table_name(_PLACEHOLDER.sub("x", value))
    return value


def _subject_rule(value: str) -> str:
    if value.startswith(":"):
        # ids of another context would be taken for ids of the pipeline's own
        raise PydanticCustomError(
            "subject_context", "must not name a context: set registry.context"
        )
    if value not in ("auto", "any"):
        _known_placeholders(value, SUBJECT_PLACEHOLDERS)
    return value


def _known_placeholders(template: str, known: tuple[str, ...]) -> None:
    names = placeholders(template)
    unknown = next((name for name in names if name not in known), None)
    if unknown is None and "{" not in _PLACEHOLDER.sub("", template):
        return
    close = nearest(unknown, known) if unknown else ""
    raise PydanticCustomError(
        "template",
        "may use only these placeholders: {known}",
        {"known": ", ".join(f"{{{name}}}" for name in known)}
        | ({"suggestion": f"{{{close}}}"} if close else {}),
    )


def _context_name(value: str) -> str:
    """`team`, `.team` and `:.team:` are one context."""
    inner = value.removeprefix(":").removesuffix(":")
    name = inner if inner.startswith(".") else f".{inner}"
    if not _CONTEXT.fullmatch(name) or name == ".__GLOBAL" or set(name) == {"."}:
        raise PydanticCustomError(
            "context_name", "must be letters, digits and . _ + ~ - (200 at most), such as .team"
        )
    return name


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise PydanticCustomError("url", "must be an address such as http://host:8081")
    if "@" in parts.netloc:
        raise PydanticCustomError("url", "must not hold credentials: use username and password")
    return value


Text = Annotated[str, AfterValidator(one_line)]
TableName = Annotated[Text, AfterValidator(_table_name)]
TablePrefix = Annotated[str, AfterValidator(_table_prefix)]
TableTemplate = Annotated[Text, AfterValidator(_table_template)]
SubjectRule = Annotated[Text, AfterValidator(_subject_rule)]
PipelineName = Annotated[
    Text,
    matching(
        _PIPELINE,
        "pipeline_name",
        "must be letters, digits, dots, dashes and underscores (100 at most)",
    ),
]
FieldName = Annotated[
    Text, matching(_FIELD, "field_name", "must be a field name, or a path such as a.b.c")
]
ContextName = Annotated[Text, AfterValidator(_context_name)]
HttpUrl = Annotated[Text, AfterValidator(_http_url)]

Listed = BeforeValidator(split, json_schema_input_type=tuple[str, ...] | str)
"""For lists that may also be written as `a, b`."""
_TopicName = Annotated[
    Text,
    matching(
        _TOPIC, "topic_name", "must be letters, digits, dots, dashes and underscores (249 at most)"
    ),
]
Topics = Annotated[tuple[_TopicName, ...], Listed]
Urls = Annotated[tuple[HttpUrl, ...], Listed]
FieldNames = Annotated[tuple[FieldName, ...], Listed]
