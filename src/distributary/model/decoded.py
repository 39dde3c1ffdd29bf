"""What a decoder gives back: good rows and bad records are two outputs, not an exception."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from distributary.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that could not be decoded."""

    index: int
    """Its position in the array of payloads."""
    code: ErrorCode
    message: str
    """The decoder's own words, free of payload content."""
    position: int | None = None
    """The byte at which decoding failed, where that is known."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of the records that decoded, and the records that did not."""

    ok: pa.RecordBatch
    """One column per `Decoder.columns`, in that order."""
    origin: pa.Int64Array | None
    """For each row of `ok` the position of its payload; None when row i is payload i."""
    failed: tuple[Failure, ...] = ()
    empty: int = 0
    """Payloads that are valid and give no row."""
    unknown: tuple[int, ...] = ()
    """Payloads with fields that their schema does not have, which are left out of their rows."""
