"""Runs in tasks: opens change files, and gives their events as raw records.

A record's topic is the file's path, its partition the file's number, its offset the event's number
in the file. A file that cannot be read, or not to its end, gives one record more, with the reason
in its headers: nothing that was found is passed over in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ErrorCode
from distributary.model.record import RAW, TIMESTAMP
from distributary.registry.file_schemas import keep_schema
from distributary.registry.hostile import printable
from distributary.source.files_avro import read_avro
from distributary.source.files_bytes import (
    FileFaultError,
    Patience,
    PlainBytes,
    content_of,
    is_young,
    too_large,
)
from distributary.source.files_catalogue import CataloguedFile
from distributary.source.files_events import Events, Fault
from distributary.source.files_json import read_json
from distributary.source.files_parquet import beginning, read_parquet
from distributary.source.files_store import Files

FAULT_HEADER = "distributary.fault"
"""Holds the code of what is wrong with a file."""
REASON_HEADER = "distributary.reason"
"""Holds a sentence about it."""

_MOST_TIMES = 100
"""No format takes so little for real events."""
_HEADERS = RAW.field("headers").type
Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class FilesReader:
    """Opens a task's files one after the other."""

    files: Files
    format: str
    schemas: str
    """The folder that takes the schemas of Avro files; every worker sees it."""
    settle_seconds: float
    tasks: Sequence[Sequence[CataloguedFile]]
    max_unpacked_bytes: int = 1 << 30
    """What a file may become, or 100 times its size where that is more."""
    max_payload_bytes: int = 16 << 20
    """Larger events are dead letters anyway."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
        patience = Patience(self.settle_seconds)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in self.tasks[number] if self.tasks else ():
                    yield from self._records(file, patience)

    def _records(self, file: CataloguedFile, patience: Patience) -> Iterator[pa.RecordBatch]:
        row = 0
        try:
            for found in self._events(file, patience):
                batch = _raw(found, file, row)
                yield batch
                row += batch.num_rows
        except FileFaultError as error:
            yield _raw(Fault(error.code, error.reason, error.data), file, row)
        except (FileNotFoundError, PermissionError) as error:
            reason = f"the file was listed, and cannot be opened: {type(error).__name__}"
            yield _raw(Fault(ErrorCode.FILE_UNREADABLE, reason, None), file, row)
        except MemoryError:
            reason = "there is not enough memory to read the file any further"
            yield _raw(Fault(ErrorCode.FILE_TOO_LARGE, reason, None), file, row)
        except OSError as error:
            raise self.files.unavailable(error, file.path) from error

    def _events(self, file: CataloguedFile, patience: Patience) -> Iterator[Events | Fault]:
        most = max(self.max_unpacked_bytes, _MOST_TIMES * file.size)
        if self.format == "parquet":
            with _opened(partial(self.files.open, file.path, anywhere=True), patience) as parquet:
                found = read_parquet(parquet, self._wait(file, patience), most)
                yield from _within(most, found, partial(beginning, parquet))
            return
        data = _opened(partial(PlainBytes, self.files, file.path, patience), patience)
        try:
            content = content_of(data, most)
            if self.format == "avro":
                found = read_avro(content, partial(keep_schema, Path(self.schemas)))
            else:
                found = read_json(content, self.max_payload_bytes)
            yield from _within(most, found, partial(data.rest, 0))
        finally:
            data.close()

    def _wait(self, file: CataloguedFile, patience: Patience) -> Callable[[], bool]:
        """Waits for a file that may still be being written."""
        if not self.files.grows or not is_young(file.modified_ns / 1e9):
            return lambda: False
        return partial(patience.wait, time.monotonic())


def _within(
    most: int, found: Iterator[Events | Fault], letter: Callable[[], bytes]
) -> Iterator[Events | Fault]:
    """What was found in a file, until that is more than a file may become."""
    left = most
    for each in found:
        left -= each.size
        if left < 0:
            raise FileFaultError(ErrorCode.FILE_TOO_LARGE, too_large(most), letter())
        yield each


def _opened(opening: Callable[[], Opened], patience: Patience) -> Opened:
    """A file that is not there may be back in a moment, where its writer replaces it."""
    began = time.monotonic()
    while True:
        try:
            return opening()
        except FileNotFoundError:
            if not patience.wait(began):
                raise


def _raw(found: Events | Fault, file: CataloguedFile, row: int) -> pa.RecordBatch:
    modified_us = file.modified_ns // 1000
    if isinstance(found, Fault):
        headers = [(FAULT_HEADER, str(found.code)), (REASON_HEADER, printable(found.reason))]
        pairs = [{"key": name, "value": text.encode()} for name, text in headers]
        events = Events(
            pa.array([found.data], pa.binary()), pa.nulls(1, pa.binary()), pa.nulls(1, pa.int64())
        )
        told = pa.array([pairs], _HEADERS)
    else:
        events, told = found, pa.nulls(len(found.values), _HEADERS)
    count = len(events.values)
    # names come from outside: what is no text cannot be in a column of texts
    topic = file.path.encode("utf-8", "backslashreplace").decode()
    arrays = [
        events.claims,
        events.values,
        told,
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(file.number, pa.int32()), count),
        pa.array(np.arange(row, row + count, dtype=np.int64)),
        pc.fill_null(events.times, modified_us).cast(TIMESTAMP),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)
