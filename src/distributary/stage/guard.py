"""Decoding in a child process, for a batch in which some record kills the process that decodes it.

A native decoder that dies takes its worker with it, and Spark would try the same records again for
ever. Here the child dies instead, and the records are halved until the guilty one is alone.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.cache import decoder_for
from distributary.errors import ErrorCode
from distributary.model.decoded import Decoded, Failure
from distributary.model.schema import WriterSchema
from distributary.model.table import Column

_SECONDS = 300


class GuardedDecoder:
    """Wraps a decoder: same answer, but a crash becomes a CRASHED_DECODER failure."""

    def __init__(
        self, inner: Decoder, schema: WriterSchema, message: str, limits: DecodeLimits
    ) -> None:
        self._inner = inner
        self._order = (schema, message, limits)

    @property
    def columns(self) -> tuple[Column, ...]:
        """As the wrapped decoder's."""
        return self._inner.columns

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode in children; bisect where one dies."""
        decoded = self._in_child(payloads)
        if decoded is not None:
            return decoded
        if len(payloads) == 1:
            failure = Failure(
                0, ErrorCode.CRASHED_DECODER, "the decoder's process died on this record"
            )
            empty = self._inner.decode(payloads.slice(0, 0)).ok
            return Decoded(empty, pa.array([], pa.int64()), (failure,))
        middle = len(payloads) // 2
        return _joined(
            self.decode(payloads.slice(0, middle)), self.decode(payloads.slice(middle)), middle
        )

    def _in_child(self, payloads: pa.BinaryArray) -> Decoded | None:
        # pickle between two of our own processes on one machine; nothing from outside is unpickled
        work = pickle.dumps((self._order, payloads.to_pylist()))
        child = subprocess.run(
            [sys.executable, "-m", "distributary.stage.guard"],
            input=work,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        if child.returncode != 0:
            return None
        answer: Decoded = pickle.loads(child.stdout)  # noqa: S301
        return answer


def _joined(left: Decoded, right: Decoded, middle: int) -> Decoded:
    rows = [
        np.arange(d.ok.num_rows) if d.origin is None else d.origin.to_numpy(zero_copy_only=False)
        for d in (left, right)
    ]
    return Decoded(
        ok=pa.concat_batches([left.ok, right.ok]),
        origin=pa.array(np.concatenate([rows[0], rows[1] + middle]), pa.int64()),
        failed=left.failed
        + tuple(Failure(f.index + middle, f.code, f.message, f.position) for f in right.failed),
        empty=left.empty + right.empty,
    )


def _child() -> None:
    (schema, message, limits), payloads = pickle.loads(sys.stdin.buffer.read())  # noqa: S301
    decoded = decoder_for(schema, message, limits).decode(pa.array(payloads, pa.binary()))
    sys.stdout.buffer.write(pickle.dumps(decoded))


if __name__ == "__main__":
    _child()
