"""What must not be shown, and how it is hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_SHORTEST = 4

_SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|jaas|credential|assertion|private|signature|sas\b|connection.?string"
    r"|(access|account|api|encryption|shared).?key|key$",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"://[^/\s@]*@")


def is_secret_name(name: str) -> bool:
    """Whether the value of a free-form option is hidden, going by the option's name."""
    return _SECRET_NAME.search(name) is not None


def hide_credentials(text: str) -> str:
    """An address without the user and password in front of its host."""
    return _CREDENTIALS.sub(f"://{MASK}@", text)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced."""
    # longest first, since one may contain another; the shortest occur in any text by chance
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return text
