"""Change files in a folder or a bucket, in the order in which they were found.

A position is `{files: n}`: the first n files of the catalogue are done. The catalogue is part of
the checkpoint and only grows, so that a position means the same files for ever, wherever a file
that comes late may lie. A file that changes after it was found is found again, as another one.

In the ranges of a batch an offset is `n << 32 | fingerprint of the first n files`: two catalogues
that differ do not agree on any offset past the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from distributary.config.source import FilesSource as FilesSourceConfig
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    LakeUnavailableError,
    SourceUnavailableError,
)
from distributary.model.deadletter import FAULT_HEADER, REASON_HEADER
from distributary.model.manifest import FINGERPRINT_BITS, SourceRange
from distributary.model.names import printable
from distributary.model.record import FAMILIAR, RAW, TIMESTAMP, Shapes
from distributary.registry.record_schemas import keep_schema
from distributary.source.base import BatchInput, Position, files_of, line_with, parallelism, spread
from distributary.source.files.avro import read_avro
from distributary.source.files.bytes import (
    BucketFiles,
    Events,
    Fault,
    FileFaultError,
    Files,
    LocalFiles,
    Patience,
    PlainBytes,
    content_of,
    is_young,
    too_large,
)
from distributary.source.files.catalogue import Catalogue, CataloguedFile, FoundFile, Walk, Wanted
from distributary.source.files.json import read_json
from distributary.source.files.parquet import beginning, read_parquet
from distributary.store.base import local_path

# Runs in tasks: opens change files, and gives their events as raw records.
#
# A record's topic is the file's path, its partition the file's number, its offset the event's
# number in the file. A file that cannot be read, or not to its end, gives one record more, with
# the reason in its headers: nothing that was found is passed over in silence.

_MOST_TIMES = 100
"""No format takes so little for real events."""
_EVENT_BYTES = 512
"""What an event takes on its way, beside its own bytes: millions of empty ones are many bytes."""
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
    shapes: Shapes | None = None
    """What events looked like until now: then it is told of each whether it looks like them."""

    def knowing(self, shapes: Shapes) -> FilesReader:
        """The same for a task that knows what events looked like until now."""
        # in files of Avro and Parquet that says their schema
        return replace(self, shapes=shapes) if self.format == "json" else self

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
        patience = Patience(self.settle_seconds)
        for file in files_of(batches, self.tasks):
            yield from self._records(file, patience)

    def _records(self, file: CataloguedFile, patience: Patience) -> Iterator[pa.RecordBatch]:
        row = 0
        try:
            for found in self._events(file, patience):
                batch = self._raw(found, file, row)
                yield batch
                row += batch.num_rows
        except FileFaultError as error:
            yield self._raw(Fault(error.code, error.reason, error.data), file, row)
        except (FileNotFoundError, PermissionError) as error:
            reason = f"the file was listed, and cannot be opened: {type(error).__name__}"
            yield self._raw(Fault(ErrorCode.FILE_UNREADABLE, reason, None), file, row)
        except MemoryError:
            reason = "there is not enough memory to read the file any further"
            yield self._raw(Fault(ErrorCode.FILE_TOO_LARGE, reason, None), file, row)
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
                found = read_avro(content, partial(keep_schema, self.schemas))
            else:
                found = read_json(content, self.max_payload_bytes, self.shapes)
            yield from _within(most, found, partial(data.rest, 0))
        finally:
            data.close()

    def _raw(self, found: Events | Fault, file: CataloguedFile, row: int) -> pa.RecordBatch:
        batch = _raw(found, file, row)
        if self.shapes is None:
            return batch
        familiar = found.familiar if isinstance(found, Events) else None
        flags = np.zeros(batch.num_rows, np.bool_) if familiar is None else familiar
        return batch.append_column(FAMILIAR, pa.array(flags))

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
        events = len(each.values) if isinstance(each, Events) else 1
        left -= each.size + events * _EVENT_BYTES
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


MOST_EVENTS = 1 << 31
"""In one file: their number is not known before they are read."""


class FilesSource:
    """Reads files as they come."""

    def __init__(
        self,
        config: FilesSourceConfig,
        *,
        folder: str | Path,
        schemas: str | Path,
        storage_options: Mapping[str, str] | None = None,
        max_payload_bytes: int = 16 << 20,
    ) -> None:
        self._config = config
        self._max_payload_bytes = max_payload_bytes
        self._folder = folder
        self._schemas = schemas
        self._files = files_at(config.root, storage_options or {})
        self._settle = config.settle.total_seconds()
        self._wanted = Wanted(config.format, config.include, config.exclude, config.start_date)
        self._listing = (
            self._files
            if isinstance(self._files, BucketFiles)
            else Walk(self._files.root, settle_ns=int(self._settle * 1e9))
        )

    @cached_property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._folder)

    def first(self) -> Position:
        """Before the first file that will be found."""
        return {"files": 0}

    def newest(self) -> Position:
        """Behind every file that is there now and complete; waits a moment for young ones."""
        self._catalogue.put_together()
        self._catalogue.append(self._settled(self._new()))
        self._listing.confirm()
        return {"files": len(self._catalogue)}

    def advance(self, start: Position, until: Position) -> Position | None:
        """As many files as the limits allow, one at least."""
        begin = self._number(start)
        most = min(int(until["files"]), begin + self._config.max_files_per_batch)
        taken = self._within_bytes(self._catalogue.files(begin, most))
        return self._position(begin + len(taken)) if taken else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """The files that a batch of before covered, if the catalogue still has the same ones."""
        offset = max((r.end for r in ranges), default=self._offset(int(start["files"])))
        end = offset >> FINGERPRINT_BITS
        if end > len(self._catalogue) or self._offset(end) != offset:
            raise DivergedError(
                "a batch of before covered other files than the catalogue has now",
                where=str(self._folder),
                evidence=f"it ended with file {end}",
                next_step="put the newest copy of the checkpoint back, or `reset` the pipeline",
            )
        return self._position(end)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """The files between two positions, spread over tasks by size."""
        begun, ended = self._number(start), self._number(end)
        files = self._catalogue.files(begun, ended)
        # opening a file costs something too, however small it is
        tasks = spread(
            files, parallelism(spark), weight=lambda f: f.size + 65_536, order=lambda f: f.number
        )
        most = len(files) * MOST_EVENTS
        offsets = self._offset(begun), self._offset(ended)
        return BatchInput(
            tasks=max(1, len(tasks)),
            reader=self._reader(tasks),
            ranges=(SourceRange(self._config.root, 0, *offsets, most),) if files else (),
            end=end,
            counted=False,
            newest_us=max((f.modified_ns // 1000 for f in files), default=None),
        )

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """The next events, at most a batch of files; the catalogue stays as it is."""
        begin, most = self._number(start), self._config.max_files_per_batch
        files = self._catalogue.files(begin, begin + most)
        if len(files) < most:
            new = sorted(self._new(), key=attrgetter("path"))[: most - len(files)]
            files += [
                CataloguedFile(number, file.path, file.size, file.modified_ns, 0)
                for number, file in enumerate(new, len(self._catalogue))
            ]
        files = self._within_bytes(files)
        yield from self._reader([files])(iter([pa.record_batch({"task": [0]})]))

    def survey(self) -> tuple[list[FoundFile], int]:
        """All files that are read, by path, and how many others lie there; the first is opened."""
        there = list(self._listing.files())
        wanted = sorted(filter(self._wanted, there), key=attrgetter("path"))
        if wanted:
            path = wanted[0].path
            try:
                with self._files.open(path) as file:
                    file.read(1)
            except OSError as error:
                raise self._files.unavailable(error, path) from error
        return wanted, len(there) - len(wanted)

    def explain(self, error: Exception) -> DistributaryError | None:
        """What a failure of Spark's job means, where it is about the files."""
        text = str(error)
        if "SourceUnavailableError" in text:
            return SourceUnavailableError(
                "the store of change files stopped answering in the middle of a batch",
                where=self._config.root,
                evidence=line_with("SOURCE_UNAVAILABLE", text),
                next_step="nothing of the batch is half done: it is tried again",
            )
        if "RegistryUnavailableError" in text:
            return LakeUnavailableError(
                "a task could not keep the schema of a change file",
                where=str(self._schemas),
                evidence=line_with("seen:", text),
                next_step="every worker must be able to write into the checkpoint's folder",
            )
        return None

    def _new(self) -> list[FoundFile]:
        found = filter(self._wanted, self._listing.files())
        return [file for file in found if not self._catalogue.knows(file)]

    def _settled(self, files: Sequence[FoundFile]) -> list[FoundFile]:
        """The files that are complete, as far as that can be seen, by path."""
        since = time.time() - self._settle
        young = [f for f in files if not f.whole and f.modified_ns / 1e9 > since]
        if not young or not self._settle:
            return sorted(files, key=attrgetter("path"))
        newest = max(f.modified_ns for f in young) / 1e9
        # a clock that is ahead, here or where files are written, does not stop everything
        time.sleep(min(self._settle, newest - since))
        changed = {f.path for f in young if not _same(f, self._listing.look(f.path))}
        return sorted((f for f in files if f.path not in changed), key=attrgetter("path"))

    def _within_bytes(self, files: Sequence[CataloguedFile]) -> list[CataloguedFile]:
        left = self._config.max_bytes_per_batch
        taken: list[CataloguedFile] = []
        for file in files:
            if taken and file.size > left:
                break
            left -= file.size
            taken.append(file)
        return taken

    def _position(self, files: int) -> Position:
        return {"files": files, "chain": self._catalogue.chain(files)}

    def _number(self, position: Position) -> int:
        """Return how many files were read; raise if the catalogue has other files by now."""
        files, chain = int(position["files"]), position.get("chain")
        if files > len(self._catalogue):
            raise self._mixture(f"a position behind file {files}, of {len(self._catalogue)}")
        # positions of the version before have none
        if chain is not None and chain != self._catalogue.chain(files):
            raise self._mixture(f"the first {files} files are not those that were read")
        return files

    def _mixture(self, evidence: str) -> DivergedError:
        return DivergedError(
            "the checkpoint has read files that its catalogue does not have",
            where=str(self._folder),
            evidence=evidence,
            next_step="the checkpoint is a mixture of two copies: restore one of them whole",
        )

    def _offset(self, files: int) -> int:
        return files << FINGERPRINT_BITS | self._catalogue.chain(files)

    def _reader(self, tasks: Sequence[Sequence[CataloguedFile]]) -> FilesReader:
        return FilesReader(
            files=self._files,
            format=self._config.format,
            schemas=str(self._schemas),
            settle_seconds=self._settle,
            tasks=tasks,
            max_unpacked_bytes=self._config.max_unpacked_bytes,
            max_payload_bytes=self._max_payload_bytes,
        )


def files_at(address: str, options: Mapping[str, str]) -> Files:
    """The files below an address."""
    folder = local_path(address)
    return BucketFiles(address.rstrip("/"), options) if folder is None else LocalFiles(str(folder))


def _same(file: FoundFile, now: FoundFile | None) -> bool:
    return now is not None and (file.size, file.modified_ns) == (now.size, now.modified_ns)
