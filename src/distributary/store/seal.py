"""The seal of a document that decides something: a checksum in a line of its own after it.

    {"life": "3f2a...", "pipeline": "games"}
    sha256 9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab

A document of an earlier version has no such line, and is accepted: it ends with the bracket of its
JSON. A sealed document ends with a hexadecimal digit, which no single flipped bit turns into a
bracket, so that a damaged seal is never mistaken for a document without one.
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
    """Return the document without its seal; raise CheckpointError if the seal does not match."""
    match = _SEAL.fullmatch(data[-_LENGTH:])
    if match is not None:
        text = data[:-_LENGTH]
        if hashlib.sha256(text).hexdigest().encode() == match[1]:
            return text
        evidence = "the checksum does not match the content"
    elif data.rstrip().endswith((b"}", b"]")):
        # An earlier version wrote this document.
        return data
    else:
        evidence = f"{len(data):,} bytes that end neither with a checksum nor with the end of JSON"
    raise CheckpointError(
        "a file of the pipeline's progress is damaged",
        where=where,
        evidence=evidence,
        next_step=next_step,
    )
