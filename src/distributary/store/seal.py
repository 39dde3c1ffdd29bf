"""The seal of a document that decides something: a checksum in a line of its own behind it.

    {"life": "3f2a...", "pipeline": "games"}
    sha256 9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab

A document of the version before has no such line, and is accepted as it is: it ends with the
bracket of its JSON. A sealed one ends with a hexadecimal digit, and no single bit makes that a
bracket, so that a damaged seal is never taken for a document without one.
"""

from __future__ import annotations

import hashlib
import re

from distributary.errors import CheckpointError

_SEAL = re.compile(rb"\nsha256 ([0-9a-f]{64})\n")
_LENGTH = len("\nsha256 \n") + 64


def seal(text: bytes) -> bytes:
    """Add the checksum to a document, which is one JSON value."""
    return text + b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"


def unseal(data: bytes, *, where: str, next_step: str) -> bytes:
    """Return the document without its seal; raise CheckpointError where the two do not agree."""
    found = _SEAL.fullmatch(data[-_LENGTH:])
    if found is not None:
        text = data[:-_LENGTH]
        if hashlib.sha256(text).hexdigest().encode() == found[1]:
            return text
        evidence = "its checksum does not agree with its content"
    elif data.rstrip().endswith((b"}", b"]")):
        # written by the version before
        return data
    else:
        evidence = f"{len(data):,} bytes that end neither with a checksum nor as JSON does"
    raise CheckpointError(
        "a file that decides about records is damaged",
        where=where,
        evidence=evidence,
        next_step=next_step,
    )
