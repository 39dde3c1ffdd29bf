"""The fields of a message around a payload, as readers of messages without a schema find them."""

from __future__ import annotations

from typing import Any, Protocol

TYPE, SCHEMA_ID, PAYLOAD, ENCODED = range(4)
"""The fields that are searched for in a message; ENCODED is a payload in base64."""

Found = dict[int, tuple[Any, str]]
"""The fields found in a message, each with its value and its exact text."""


class FieldReader(Protocol):
    """A reader that finds fields in messages, as far into them as it has to look."""

    def read(self, message: bytes) -> Found:
        """Find the fields in a message; raise RefusedError if it is none of this format."""
