"""What must not be shown, and how it is hidden: the one list of what is secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MASK = "***"
SECRET_NAMES = (
    r"secret|passw|passphrase|pwd|token|jaas|credential|assertion|private|signature|bearer"  # noqa: S105
    r"|authorization|user.?info|sas(?![a-z])|(?<![a-z])(?:sig|pass)(?![a-z])|connection.?string"
    r"|(?:access|account|api|encryption|shared|keystore).?key|key$"
)
"""Names of options whose values are hidden, in any case; Python and Java read it alike."""

_SHORTEST = 4
_COMMON = frozenset({"true", "false"})
_NAME = re.compile(SECRET_NAMES, re.IGNORECASE)
_CREDENTIALS = re.compile(r"://([^/\s@]*)@")
# what follows is looked at and not taken: it may be an assignment itself
_ASSIGNED = re.compile(r"""(?:-D)?([\w.-]+)=(?=["']?([^\s;&"']+))""")


@dataclass(frozen=True, slots=True)
class Sealed:
    """Marks a free-form setting of which every value is hidden, but for those of some names."""

    shown: frozenset[str]


def is_sealed(marks: Iterable[object], name: str) -> bool:
    """Whether a value is hidden because of where it stands, whatever its name."""
    return any(isinstance(mark, Sealed) and name not in mark.shown for mark in marks)


def is_secret_name(name: str) -> bool:
    """Whether the value of a free-form option is hidden, going by the option's name."""
    return _NAME.search(name) is not None


def secrets_within(value: str) -> Iterator[str]:
    """The secrets inside a text: of options of a JVM, connection strings, and addresses."""
    yield from (found.partition(":")[2] or found for found in _CREDENTIALS.findall(value) if found)
    for option in jvm_options(value):
        name, _, given = option.partition("=")
        if given and name.startswith("-D") and is_secret_name(name[2:]):
            yield given
    yield from (given for name, given in _ASSIGNED.findall(value) if is_secret_name(name))


def secrets_of(name: str, value: str) -> Iterator[str]:
    """The secrets of a free-form option: the whole value, or what is inside it."""
    if is_secret_name(name):
        yield value
    yield from secrets_within(value)


def jvm_options(text: str) -> list[str]:
    """The options of a text, which may be quoted; the text itself if a quote is left open."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def hide(name: str, value: str) -> str:
    """The value of a free-form option without its secrets."""
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
    """An address without the user and password in front of its host."""
    return _CREDENTIALS.sub(f"://{MASK}@", text)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced."""
    # longest first, since one may contain another; the shortest occur in any text by chance
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST and secret.lower() not in _COMMON:
            text = text.replace(secret, MASK)
    return text
