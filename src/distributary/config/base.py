"""The types, parsers and checks that all sections of a pipeline file share."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import SequenceMatcher
from typing import Annotated, Any, LiteralString, Self
from urllib.parse import urlsplit

from annotated_types import Gt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

Conflict = tuple[tuple[str | int, ...], str]
"""The path of the offending setting below its section, and the reason why it is refused."""

CONFLICT = "conflict"
"""The pydantic error type of a conflict."""


class Section(BaseModel):
    """A part of the pipeline file: frozen, with unknown keys refused.

    The text under a setting is its description. `config/file/show.py` reads it from the source.
    """

    model_config = ConfigDict(
        # pydantic builds validators when a file is loaded; workers and most commands load none
        defer_build=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the settings that are valid alone and cannot work together."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        details = [
            InitErrorDetails(
                type=PydanticCustomError(CONFLICT, "{why}", {"why": why}), loc=path, input=None
            )
            for path, why in self.conflicts()
        ]
        if details:
            raise ValidationError.from_exception_data(type(self).__name__, details)
        return self


# Parsing and formatting of durations, sizes and shares: `10s`, `500ms`, `16MiB`, `1%`.

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
# a timedelta holds nine digits of days at most
_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15})\s*([kmg]?i?b|)", re.IGNORECASE)
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(%?)")

_DURATION_HINT = "must be a number and a unit, such as 500ms, 10s, 1m, 2h or 7d"
_SIZE_HINT = "must be a number of bytes, or a number and a unit such as 64KiB, 16MiB or 1GB"
_SHARE_HINT = "must be a share such as 1% or 0.01: more than nothing, and 100% at most"


def parse_duration(value: object) -> timedelta:
    """Parse a text such as `10s`; return a timedelta of whole milliseconds unchanged."""
    if isinstance(value, timedelta) and value >= timedelta(0) and not value.microseconds % 1000:
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("duration", _DURATION_HINT)
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]]
    # seconds and milliseconds are passed apart: one float of milliseconds would lose digits
    return timedelta(seconds=milliseconds // 1000, milliseconds=milliseconds % 1000)


def format_duration(value: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back as the same duration."""
    milliseconds = value // timedelta(milliseconds=1)
    if not milliseconds:
        return "0s"
    unit = next(u for u in reversed(_MILLISECONDS) if not milliseconds % _MILLISECONDS[u])
    return f"{milliseconds // _MILLISECONDS[unit]}{unit}"


def parse_size(value: object) -> int:
    """Parse a text such as `16MiB`, or a plain number, into a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _BYTES:
        raise PydanticCustomError("size", _SIZE_HINT)
    return int(match[1]) * _BYTES[match[2].lower()]


def format_size(value: int) -> str:
    """Format a number of bytes in the largest binary unit that divides it, else in bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if value and not value % _BYTES[unit.lower()]:
            return f"{value // _BYTES[unit.lower()]}{unit}"
    return str(value)


def parse_share(value: object) -> float:
    """Parse a text such as `1%` or `0.01` into a fraction of one."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _SHARE.fullmatch(text.strip()) if isinstance(text, str) else None
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise PydanticCustomError("share", _SHARE_HINT)
    return share


def either(*schemas: dict[str, Any]) -> WithJsonSchema:
    """Build the JSON schema of a setting that may be written in several ways."""
    return WithJsonSchema({"anyOf": list(schemas)})


DURATION_PATTERN = rf"^\s*{_DURATION.pattern}\s*$"
Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
PositiveDuration = Annotated[Duration, Gt(timedelta(0))]

Size = Annotated[
    int,
    PlainValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    either(
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*[0-9]{1,15}\s*([kmgKMG]?[iI]?[bB])?\s*$"},
    ),
]
PositiveSize = Annotated[Size, Gt(0)]

Share = Annotated[
    float,
    PlainValidator(parse_share),
    either(
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "pattern": rf"^\s*{_SHARE.pattern}\s*$"},
    ),
]


# Points in time are ISO-8601 texts; without a time zone they are UTC.

MOMENT_SCHEMA = {"type": "string", "pattern": r"^\s*[0-9]{4}-?[0-9W]"}


def parse_moment(value: object) -> datetime:
    """Parse a date or a time such as `2026-01-31T12:00:00Z`; return a datetime unchanged.

    Numbers are refused, because they do not name their unit.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = None
    if not isinstance(value, datetime):
        raise PydanticCustomError("moment", "must be a time such as 2026-01-31T12:00:00Z")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


Moment = Annotated[
    datetime,
    PlainValidator(parse_moment),
    PlainSerializer(datetime.isoformat, return_type=str),
    WithJsonSchema(MOMENT_SCHEMA),
]


# Suggestions for misspelt words.


def similarity(word: str, candidate: str) -> float:
    """Compare two words regardless of case, `-` and `_`: 1 for equal, 0 for nothing in common."""
    return SequenceMatcher(None, _plain(word), _plain(candidate), autojunk=False).ratio()


def nearest(word: str, candidates: Iterable[str], *, at_least: float = 0.6) -> str:
    """Return the candidate that is most similar to the word; empty when none is similar enough."""
    # a typo seldom doubles the length of a word; the limit bounds the cost of a long hostile key
    scored = [(similarity(word, c), c) for c in candidates if len(word) <= 2 * len(c) + 4]
    best = max(scored, default=(0.0, ""), key=lambda pair: pair[0])
    return best[1] if best[0] >= at_least else ""


def _plain(word: str) -> str:
    return word.casefold().replace("-", "_")


# Validated kinds of text, each with the sentence that refuses a wrong value.

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_TABLE = r"[A-Za-z][A-Za-z0-9_]{0,119}"


def matching(pattern: str, code: LiteralString, words: LiteralString) -> AfterValidator:
    """Build a validator that refuses text unless all of it matches the pattern."""
    return required(re.compile(pattern).fullmatch, code, words)


def required(
    fits: Callable[[Any], object], code: LiteralString, words: LiteralString
) -> AfterValidator:
    """Build a validator that refuses values for which `fits` is false."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise PydanticCustomError(code, words)
        return value

    return AfterValidator(check)


def checked_line(value: str) -> str:
    """Strip a text; refuse it when empty, or with characters that could forge options or output."""
    stripped = value.strip()
    if not stripped:
        raise PydanticCustomError("blank", "must not be empty")
    if not stripped.isprintable():
        raise PydanticCustomError("unprintable", "must be one line of printable text")
    return stripped


def split(value: object) -> object:
    """Split a text such as `a, b` into a tuple, so that one variable can hold several names."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def placeholders(template: str) -> tuple[str, ...]:
    """Return the names that stand in braces in a template."""
    return tuple(_PLACEHOLDER.findall(template))


def _placing(*known: str, short: tuple[str, ...] = ()) -> AfterValidator:
    """Build a validator that refuses templates with unknown placeholders.

    `short` lists placeholders that were expanded before: they are named in the message only.
    """

    def check(template: str) -> str:
        unknown = next((name for name in placeholders(template) if name not in known), None)
        if unknown is None and "{" not in _PLACEHOLDER.sub("", template):
            return template
        close = nearest(unknown, known) if unknown else ""
        raise PydanticCustomError(
            "template",
            "may use only these placeholders: {known}",
            {"known": ", ".join(f"{{{name}}}" for name in (*known, *short))}
            | ({"suggestion": f"{{{close}}}"} if close else {}),
        )

    return AfterValidator(check)


def unpaired_login(username: object, password: object) -> Iterator[Conflict]:
    """Yield a conflict when only one of username and password is set."""
    if (username is None) != (password is None):
        given, other = ("username", "password") if username else ("password", "username")
        yield (given,), f"needs {other}"


LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


def is_loopback(host: str) -> bool:
    """Return true when an address can be reached from this machine only."""
    name = host.lower().strip("[]")
    if name in LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_http_url(value: str) -> bool:
    """Return true when a text is a valid http or https address."""
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _http_url(value: str) -> str:
    if not is_http_url(value):
        raise PydanticCustomError("url", "must be an address such as http://host:8081")
    if "@" in urlsplit(value).netloc:
        raise PydanticCustomError("url", "must not hold credentials: use username and password")
    return value


Text = Annotated[str, AfterValidator(checked_line)]
_TABLE_WORDS = "must start with a letter, then letters, digits and _ (120 at most)"
TableName = Annotated[Text, matching(_TABLE, "table_name", _TABLE_WORDS)]
TablePrefix = Annotated[str, matching(f"({_TABLE})?", "table_name", _TABLE_WORDS)]
TableTemplate = Annotated[
    Text,
    _placing(
        *("type", "topic", "record", "database", "schema", "table"),
        short=("field:PATH", "header:NAME", "key"),
    ),
    # a placeholder is replaced by a safe name, so the text around it must be safe too
    required(
        lambda value: re.fullmatch(_TABLE, _PLACEHOLDER.sub("x", value)),
        "table_name",
        _TABLE_WORDS,
    ),
]
SubjectRule = Annotated[
    Text,
    # ids are counted per context: ids of another one would be mistaken for ids of this pipeline
    matching("[^:].*", "subject_context", "must not name a context: set registry.context"),
    _placing("topic", "type", "record"),
]
PipelineName = Annotated[
    Text,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "pipeline_name",
        "must be letters, digits, dots, dashes and underscores (100 at most)",
    ),
]
FieldName = Annotated[
    Text,
    matching(
        r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
        "field_name",
        "must be a field name, or a path such as a.b.c",
    ),
]
_PATH = r"[^\s.{}]+(\.[^\s.{}]+)*"
TYPE_PLACE = re.compile(rf"\{{(?:field:(?P<field>{_PATH})|(?P<other>header:[^\s{{}}]+|key))\}}")
"""The placeholder in the template of table names that says where a record names its type."""
FieldPath = Annotated[
    Text,
    # JSON has fields of any name, such as @type
    matching(_PATH, "field_path", "must be a field, or a path such as event.name"),
]
TypePlace = Annotated[
    Text,
    matching(
        rf"\{{key\}}|\{{header:[^\s{{}}]+\}}|{_PATH}",
        "type_place",
        "must be a field, a path such as event.name, {header:NAME} or {key}",
    ),
]
ContextName = Annotated[
    Text,
    # `team`, `.team` and `:.team:` are one context
    AfterValidator(lambda value: f".{value.removeprefix(':').removesuffix(':').removeprefix('.')}"),
    matching(
        r"(?!\.__GLOBAL$)(?!\.+$)\.[A-Za-z0-9_.+~-]{1,200}",
        "context_name",
        "must be letters, digits and . _ + ~ - (200 at most), such as .team",
    ),
]
HttpUrl = Annotated[Text, AfterValidator(_http_url)]

Listed = BeforeValidator(split, json_schema_input_type=tuple[str, ...] | str)
"""A validator for lists that may also be written as `a, b`."""
_TopicName = Annotated[
    Text,
    matching(
        r"[A-Za-z0-9._-]{1,249}",
        "topic_name",
        "must be letters, digits, dots, dashes and underscores (249 at most)",
    ),
]
Topics = Annotated[tuple[_TopicName, ...], Listed]
Urls = Annotated[tuple[HttpUrl, ...], Listed]
FieldNames = Annotated[tuple[FieldName, ...], Listed]
Texts = Annotated[tuple[Text, ...], Listed]


# Masking of secrets. This is the only list of names that mark a value as secret.

MASK = "***"
SECRET_NAMES = (
    r"secret|passw|passphrase|pwd|token|jaas|credential|assertion|private|signature|bearer"  # noqa: S105
    r"|authorization|user.?info|sas(?![a-z])|(?<![a-z])(?:sig|pass)(?![a-z])|connection.?string"
    r"|(?:access|account|api|encryption|shared|keystore).?key|key$"
)
"""A pattern for the names of options whose values are hidden, in any case.

Python and Java both read it."""

_SHORTEST = 4
_COMMON = frozenset({"true", "false"})
_NAME = re.compile(SECRET_NAMES, re.IGNORECASE)
_CREDENTIALS = re.compile(r"://([^/\s@]*)@")
# the value is matched by a lookahead, because it may itself be an assignment
_ASSIGNED = re.compile(r"""(?:-D)?([\w.-]+)=(?=["']?([^\s;&"']+))""")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A mark for a free-form setting: its values are hidden, except for the names in `shown`."""

    shown: frozenset[str]


def is_sealed(marks: Iterable[object], name: str) -> bool:
    """Return true when the setting is marked as `Sealed` and hides the option of this name."""
    return any(isinstance(mark, Sealed) and name not in mark.shown for mark in marks)


def is_secret_name(name: str) -> bool:
    """Return true when the name of a free-form option says that its value is secret."""
    return _NAME.search(name) is not None


def secrets_within(value: str) -> Iterator[str]:
    """Yield the secrets inside a text: in JVM options, connection strings and addresses."""
    yield from (login.partition(":")[2] or login for login in _CREDENTIALS.findall(value) if login)
    options = (option.partition("=") for option in jvm_options(value) if option.startswith("-D"))
    yield from (given for name, _, given in options if given and is_secret_name(name[2:]))
    yield from (given for name, given in _ASSIGNED.findall(value) if is_secret_name(name))


def secrets_of(name: str, value: str) -> Iterator[str]:
    """Yield the secrets of a free-form option: the whole value, or the secrets inside it."""
    if is_secret_name(name):
        yield value
    yield from secrets_within(value)


def jvm_options(text: str) -> list[str]:
    """Split a text of JVM options, which may be quoted; return it whole if a quote is left open."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def hide(name: str, value: str) -> str:
    """Return the value of a free-form option with its secrets replaced by `***`."""
    if is_secret_name(name):
        return MASK
    value = hide_credentials(value)
    if not any(secret != MASK for secret in secrets_within(value)):
        return value
    options = jvm_options(value)
    if not name.endswith("JavaOptions") or options == [value]:
        return MASK
    return " ".join(
        f"{option.partition('=')[0]}={MASK}" if any(secrets_within(option)) else option
        for option in options
    )


def hide_credentials(text: str) -> str:
    """Return an address without the user and password in front of its host."""
    return _CREDENTIALS.sub(f"://{MASK}@", text)


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret replaced by `***`."""
    # longest first, since one secret may contain another; short ones occur in any text by chance
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST and secret.lower() not in _COMMON:
            text = text.replace(secret, MASK)
    return text
