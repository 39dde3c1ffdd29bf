"""Decoding in a child process, for batches with a record that kills its decoder.

A native decoder that crashes ends its worker, and Spark would retry the same records forever. Here
only a child process ends. The records are then halved until the record that ends it is found. The
same applies to a record whose decoded form exceeds the memory.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zipimport import zipimporter

import numpy as np
import pyarrow as pa

from distributary.decode.base import Decoder, Gathered
from distributary.decode.change.base import ChangeDecoder
from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded
from distributary.threads import end_process

_SECONDS = 300


class GuardedDecoder:
    """A decoder of payloads or change events that reports crashes as CRASHED_DECODER failures."""

    def __init__(self, build: Callable[[], Decoder | ChangeDecoder]) -> None:
        self._build = build
        inner = build()
        self.columns, self.expansion = inner.columns, inner.expansion

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table | None = None) -> Decoded:
        """Decode in a child process; halve the records if it dies."""
        decoded = _in_child(self._build, payloads, raw)
        if isinstance(decoded, Decoded):
            return decoded
        schema = pa.schema([pa.field(column.name, column.type) for column in self.columns])
        gathered = Gathered(schema, len(payloads))
        if len(payloads) == 1:
            gathered.fail(0, ErrorCode.CRASHED_DECODER, decoded)
            return gathered.decoded()
        half = len(payloads) // 2
        for part in (slice(0, half), slice(half, len(payloads))):
            half_decoded = self.decode(payloads[part], None if raw is None else raw[part])
            positions = np.arange(part.start, part.stop)
            gathered.add(
                half_decoded.ok, gathered.take(half_decoded, positions), empty=half_decoded.empty
            )
            for index in half_decoded.unknown:
                gathered.note_unknown(positions[index])
        return gathered.decoded()


def _in_child(
    build: Callable[[], Decoder | ChangeDecoder], payloads: pa.BinaryArray, raw: pa.Table | None
) -> Decoded | str:
    """Decode in a child process; return the result, or a description of the child's death."""
    # Both ends are processes of this program: nothing that comes from outside is unpickled.
    work = pickle.dumps((build, payloads.to_pylist(), None if raw is None else _stream(raw)))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "distributary.stage.guard"],
            input=work,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the decoder's process was not done with this record after {_SECONDS} seconds"
    if child.returncode != 0:
        if b"MemoryError" in child.stderr:
            return "the decoder's process ran out of memory on this record"
        return f"the decoder's process died on this record (exit code {child.returncode})"
    decoded: Decoded
    decoded, rows = pickle.loads(child.stdout)  # noqa: S301
    return replace(decoded, ok=pa.RecordBatch.from_struct_array(rows))


def _stream(raw: pa.Table) -> bytes:
    """Serialize a slice without the table behind it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, raw.schema) as writer:
        writer.write_table(raw)
    return bytes(sink.getvalue())


def _child() -> None:
    # When memory runs out, the kernel should end this process and not the worker that waits for it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    build, payloads, stream = pickle.loads(sys.stdin.buffer.read())  # noqa: S301
    raw = () if stream is None else (pa.ipc.open_stream(stream).read_all(),)
    decoded: Decoded = build().decode(pa.array(payloads, pa.binary()), *raw)
    # Pickle loses the row count of a batch without columns, but not of a struct array.
    rows = decoded.ok.to_struct_array()
    sys.stdout.buffer.write(pickle.dumps((replace(decoded, ok=decoded.ok.slice(0, 0)), rows)))


# Cheaper task starts in Python workers of Spark. PySpark calls `importlib.invalidate_caches()` at
# the start of each task, and workers import PySpark from a zip archive: the archive's directory
# would be read again for each of its packages. That took 150 ms of a core for every task.


def keep_zip_directories() -> None:
    """Let importers of archives keep their directories: archives do not change under a worker."""
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter):
            finder.invalidate_caches = lambda: None  # type: ignore[method-assign]


if __name__ == "__main__":
    _child()
    # End at once: the threads of a decoder must not disturb the end of the interpreter.
    end_process(0)
