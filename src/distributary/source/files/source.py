"""Change files in a folder or a bucket, in the order in which they were found.

A position is `{files: n}`: the first n files of the list are done. The list is part of the
checkpoint and only grows, so that a position always means the same files, wherever a late file may
be. A file that changes after it was found is found again, as a new file.

In the ranges of a batch an offset is `n << 32 | fingerprint of the first n files`: two different
lists do not agree on any offset past the difference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from distributary.config.sources.files import FileNotifications, FilesSourceConfig
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
from distributary.source.files.avro_files import read_avro
from distributary.source.files.csv_files import Dialect, read_csv
from distributary.source.files.file_bytes import (
    BucketFiles,
    Fault,
    FileEvents,
    FileFaultError,
    Files,
    LocalFiles,
    Patience,
    PlainBytes,
    content_of,
    is_young,
    too_large,
)
from distributary.source.files.file_list import (
    FileFilter,
    FileList,
    FileTypes,
    FoundFile,
    ListedFile,
    Walk,
)
from distributary.source.files.json_files import read_json
from distributary.source.files.notifications import Notifications
from distributary.source.files.parquet_as_avro import read_rows
from distributary.source.files.parquet_files import (
    Rows,
    beginning,
    carrying_events,
    json_events,
    read_parquet,
)
from distributary.store.base import local_path

# The reader that runs in tasks: it opens change files and yields their events as raw records.
# A record's topic is the file's path, its partition the file's number, its offset the event's
# number in the file. A file that cannot be read, or not to its end, gives one more record with the
# reason in its headers, so that no found file is skipped silently.

_MOST_TIMES = 100
"""The ratio of unpacked to stored bytes that no format reaches with real events."""
_EVENT_BYTES = 512
"""The memory of an event besides its own bytes: millions of empty events take much."""
_HEADERS = RAW.field("headers").type
Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class FilesReader:
    """A reader that opens a task's files one after the other."""

    files: Files
    format: str
    schemas: str
    """The folder for the schemas of Avro files; every worker sees it."""
    settle_seconds: float
    tasks: Sequence[Sequence[ListedFile]]
    max_unpacked_bytes: int = 1 << 30
    """The largest number of unpacked bytes of a file, or 100 times its size if that is more."""
    max_payload_bytes: int = 16 << 20
    """The size above which events become dead letters anyway."""
    typed: bool = False
    """Whether events carry the types of their columns: files of Parquet and CSV in DMS' layout."""
    csv: Dialect = field(default_factory=Dialect)
    types: FileTypes | None = None
    """The types of records, by their file; None if files hold change events."""
    shapes: Shapes | None = None
    """The known shapes of events; if they are given, matching events are marked."""

    def knowing(self, shapes: Shapes) -> FilesReader:
        """Return a reader that marks the events which match a known shape."""
        # Files of Avro and Parquet have schemas, so shapes are not needed.
        looks = self.format == "json" and self.types is None
        return replace(self, shapes=shapes) if looks else self

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of the tasks whose numbers are in `batches`."""
        patience = Patience(self.settle_seconds)
        for file in files_of(batches, self.tasks):
            yield from self._records(file, patience)

    def _records(self, file: ListedFile, patience: Patience) -> Iterator[pa.RecordBatch]:
        row = 0
        try:
            for part in self._events(file, patience):
                batch = self._raw(self._named(part, file), file, row)
                yield batch
                row += batch.num_rows
        except FileFaultError as error:
            yield self._raw(Fault(error.code, error.reason, error.data), file, row)
        except (FileNotFoundError, PermissionError) as error:
            reason = f"the file was listed, but cannot be opened: {type(error).__name__}"
            yield self._raw(Fault(ErrorCode.FILE_UNREADABLE, reason, None), file, row)
        except MemoryError:
            reason = "there is not enough memory to read the file any further"
            yield self._raw(Fault(ErrorCode.FILE_TOO_LARGE, reason, None), file, row)
        except OSError as error:
            raise self.files.unavailable(error, file.path) from error

    def _events(self, file: ListedFile, patience: Patience) -> Iterator[FileEvents | Fault]:
        most = max(self.max_unpacked_bytes, _MOST_TIMES * file.size)
        if self.format == "parquet":
            with _opened(partial(self.files.open, file.path, anywhere=True), patience) as parquet:
                wait = self._wait(file, patience)
                parts = read_parquet(parquet, wait, most, self._rows(file))
                yield from _within(most, parts, partial(beginning, parquet))
            return
        data = _opened(partial(PlainBytes, self.files, file.path, patience), patience)
        try:
            content = content_of(data, most)
            if self.format == "avro":
                parts = read_avro(content, partial(keep_schema, self.schemas))
            elif self.format == "csv":
                parts = read_csv(content, self.max_payload_bytes, self.csv)
            else:
                named = self.types is None
                parts = read_json(content, self.max_payload_bytes, self.shapes, named=named)
            yield from _within(most, parts, partial(data.rest, 0))
        finally:
            data.close()

    def _rows(self, file: ListedFile) -> Rows:
        """Return a function that makes events of rows of Parquet."""
        if self.types is not None:
            name = self.types.of(file.path)
            return partial(read_rows, name=name, keep=partial(keep_schema, self.schemas))
        return carrying_events if self.typed else json_events

    def _named(self, part: FileEvents | Fault, file: ListedFile) -> FileEvents | Fault:
        """Return events under the type that their file names; change events name their own."""
        if self.types is None or isinstance(part, Fault):
            return part
        claim = pa.scalar(self.types.of(file.path).encode("utf-8", "backslashreplace"), pa.binary())
        return replace(
            part,
            claims=pa.repeat(claim, len(part.values)),
            times=pa.nulls(len(part.values), pa.int64()),
        )

    def _raw(self, part: FileEvents | Fault, file: ListedFile, row: int) -> pa.RecordBatch:
        batch = _raw(part, file, row)
        if self.shapes is None:
            return batch
        familiar = part.familiar if isinstance(part, FileEvents) else None
        flags = np.zeros(batch.num_rows, np.bool_) if familiar is None else familiar
        return batch.append_column(FAMILIAR, pa.array(flags))

    def _wait(self, file: ListedFile, patience: Patience) -> Callable[[], bool]:
        """Return a function that waits for a file that may still be being written."""
        if not self.files.grows or not is_young(file.modified_ns / 1e9):
            return lambda: False
        return partial(patience.wait, time.monotonic())


def _within(
    most: int, parts: Iterator[FileEvents | Fault], letter: Callable[[], bytes]
) -> Iterator[FileEvents | Fault]:
    """Yield the parts of a file; raise FileFaultError when they exceed `most` bytes."""
    left = most
    for part in parts:
        events = len(part.values) if isinstance(part, FileEvents) else 1
        left -= part.size + events * _EVENT_BYTES
        if left < 0:
            raise FileFaultError(ErrorCode.FILE_TOO_LARGE, too_large(most), letter())
        yield part


def _opened(opening: Callable[[], Opened], patience: Patience) -> Opened:
    """Open a file; wait if it is missing, because its writer may be replacing it."""
    began = time.monotonic()
    while True:
        try:
            return opening()
        except FileNotFoundError:
            if not patience.wait(began):
                raise


def _raw(part: FileEvents | Fault, file: ListedFile, row: int) -> pa.RecordBatch:
    modified_us = file.modified_ns // 1000
    if isinstance(part, Fault):
        headers = [(FAULT_HEADER, str(part.code)), (REASON_HEADER, printable(part.reason))]
        pairs = [{"key": name, "value": text.encode()} for name, text in headers]
        events = FileEvents(
            pa.array([part.data], pa.binary()), pa.nulls(1, pa.binary()), pa.nulls(1, pa.int64())
        )
        header_lists = pa.array([pairs], _HEADERS)
    else:
        events, header_lists = part, pa.nulls(len(part.values), _HEADERS)
    count = len(events.values)
    # Names come from outside: bytes that are no text are escaped.
    topic = file.path.encode("utf-8", "backslashreplace").decode()
    arrays = [
        events.claims,
        events.values,
        header_lists,
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(file.number, pa.int32()), count),
        pa.array(np.arange(row, row + count, dtype=np.int64)),
        pc.fill_null(events.times, modified_us).cast(TIMESTAMP),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)


MOST_EVENTS = 1 << 31
"""The largest number of events of one file; their number is not known before they are read."""


class FilesSource:
    """A source that reads files as they arrive."""

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
        self._types = FileTypes(config.root, config.pattern) if config.is_plain else None
        self._wanted = FileFilter(
            config.format, config.include, config.exclude, config.start_date, self._types
        )
        self._bucket = self._files if isinstance(self._files, BucketFiles) else None
        self._listing = (
            self._files
            if isinstance(self._files, BucketFiles)
            else Walk(self._files.root, settle_ns=int(self._settle * 1e9))
        )
        wanted = config.notifications
        self._notifications = None if wanted is None else _notifications(wanted, config.root)

    @cached_property
    def _file_list(self) -> FileList:
        return FileList(self._folder)

    def first(self) -> Position:
        """Return the position before the first file."""
        return {"files": 0}

    def newest(self) -> Position:
        """Return the position after all complete files; wait a moment for young ones."""
        self._file_list.put_together()
        folders = None if self._notifications is None else self._notifications.folders()
        self._file_list.append(self._by_turns(self._settled(self._new(folders))))
        self._listing.confirm()
        if self._notifications is not None:
            self._notifications.confirm()
        return {"files": len(self._file_list)}

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch of files: as many as the limits allow, at least one."""
        begin = self._number(start)
        most = min(int(until["files"]), begin + self._config.max_files_per_batch)
        taken = self._within_limits(self._file_list.files(begin, most))
        return self._position(begin + len(taken)) if taken else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the end of a batch that covered these ranges.

        Raise DivergedError for other files.
        """
        offset = max((r.end for r in ranges), default=self._offset(int(start["files"])))
        end = offset >> FINGERPRINT_BITS
        if end > len(self._file_list) or self._offset(end) != offset:
            raise DivergedError(
                "an earlier batch covered other files than the list has now",
                where=str(self._folder),
                evidence=f"the batch ended with file {end}",
                next_step="restore the newest backup of the checkpoint, or `reset` the pipeline",
            )
        return self._position(end)

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the files between two positions, spread over tasks by size."""
        begun, ended = self._number(start), self._number(end)
        files = self._file_list.files(begun, ended)
        # Opening a file has a cost too, however small the file is.
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
        """Read the next events, at most of a batch of files; the list is not changed."""
        begin, most = self._number(start), self._config.max_files_per_batch
        files = self._file_list.files(begin, begin + most)
        if len(files) < most:
            new = sorted(self._new(), key=attrgetter("path"))[: most - len(files)]
            files += [
                ListedFile(number, file.path, file.size, file.modified_ns, 0)
                for number, file in enumerate(new, len(self._file_list))
            ]
        files = self._within_limits(files)
        yield from self._reader([files])(iter([pa.record_batch({"task": [0]})]))

    def survey(self) -> tuple[list[FoundFile], int]:
        """Return all files of the source and the number of other files.

        Open the first as a test.
        """
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
        """Return the error for a failed Spark job if the files or schemas are the cause."""
        text = str(error)
        if "SourceUnavailableError" in text:
            return SourceUnavailableError(
                "the store of change files stopped answering in the middle of a batch",
                where=self._config.root,
                evidence=line_with("SOURCE_UNAVAILABLE", text),
                next_step="the batch is tried again: no part of it was written",
            )
        if "RegistryUnavailableError" in text:
            return LakeUnavailableError(
                "a task could not store the schema of a change file",
                where=str(self._schemas),
                evidence=line_with("seen:", text),
                next_step="give every worker write access to the checkpoint's folder",
            )
        return None

    def _new(self, folders: Collection[str] | None = None) -> list[FoundFile]:
        """Return the files that are not in the list; of a bucket, those in some folders."""
        if folders is None or self._bucket is None:
            there = self._listing.files()
        else:
            there = self._bucket.files_in(folders)
        return [f for f in filter(self._wanted, there) if not self._file_list.knows(f)]

    def _settled(self, files: Sequence[FoundFile]) -> list[FoundFile]:
        """Return the files that seem complete, by path; wait for young ones."""
        since = time.time() - self._settle
        young = [f for f in files if not f.whole and f.modified_ns / 1e9 > since]
        if not young or not self._settle:
            return sorted(files, key=attrgetter("path"))
        newest = max(f.modified_ns for f in young) / 1e9
        # A clock that is ahead, here or at the writer, must not stop everything.
        time.sleep(min(self._settle, newest - since))
        changed = {f.path for f in young if not _same(f, self._listing.look(f.path))}
        return sorted((f for f in files if f.path not in changed), key=attrgetter("path"))

    def _by_turns(self, files: Sequence[FoundFile]) -> list[FoundFile]:
        """Return files in the order in which each batch gets its share of every table's."""
        most = self._config.max_files_per_table
        if most is None:
            return list(files)
        seen, turns = Counter[str](), dict[str, int]()
        for file in files:
            table = self._table_of(file.path)
            turns[file.path] = seen[table] // most
            seen[table] += 1
        return sorted(files, key=lambda file: turns[file.path])

    def _table_of(self, path: str) -> str:
        """Return the table or type whose records a file holds, by its place."""
        if self._types is not None:
            return self._types.of(path)
        folders = path.split("/")[:-1]
        return "/".join(folders[: self._config.folders_of_table])

    def _within_limits(self, files: Sequence[ListedFile]) -> list[ListedFile]:
        left, most = self._config.max_bytes_per_batch, self._config.max_files_per_table
        taken: list[ListedFile] = []
        tables = Counter[str]()
        for file in files:
            table = "" if most is None else self._table_of(file.path)
            if taken and (file.size > left or (most is not None and tables[table] >= most)):
                break
            left -= file.size
            tables[table] += 1
            taken.append(file)
        return taken

    def _position(self, files: int) -> Position:
        return {"files": files, "chain": self._file_list.chain(files)}

    def _number(self, position: Position) -> int:
        """Return how many files were read; raise DivergedError if the list has other files."""
        files, chain = int(position["files"]), position.get("chain")
        if files > len(self._file_list):
            raise self._mixture(
                f"the position is after file {files}, the list has {len(self._file_list)}"
            )
        # Positions of an earlier version have no fingerprint.
        if chain is not None and chain != self._file_list.chain(files):
            raise self._mixture(f"the first {files} files differ from the files that were read")
        return files

    def _mixture(self, evidence: str) -> DivergedError:
        return DivergedError(
            "the checkpoint has read files that are not in its list of files",
            where=str(self._folder),
            evidence=evidence,
            next_step="the checkpoint mixes files of two backups: restore one backup completely",
        )

    def _offset(self, files: int) -> int:
        return files << FINGERPRINT_BITS | self._file_list.chain(files)

    def _reader(self, tasks: Sequence[Sequence[ListedFile]]) -> FilesReader:
        return FilesReader(
            files=self._files,
            format=self._config.format,
            typed=self._config.has_column_types,
            csv=Dialect(
                null=self._config.null_text,
                header=self._config.csv_header,
                delimiter=self._config.csv_delimiter,
                quote=self._config.csv_quote,
                infer=self._config.csv_types == "infer",
                typed=not self._config.is_plain,
            ),
            types=self._types,
            schemas=str(self._schemas),
            settle_seconds=self._settle,
            tasks=tasks,
            max_unpacked_bytes=self._config.max_unpacked_bytes,
            max_payload_bytes=self._max_payload_bytes,
        )


def files_at(address: str, options: Mapping[str, str]) -> Files:
    """Return the file system of an address."""
    folder = local_path(address)
    return BucketFiles(address.rstrip("/"), options) if folder is None else LocalFiles(str(folder))


def _notifications(config: FileNotifications, root: str) -> Notifications:
    # the client of Kafka is not loaded for sources without notifications
    from distributary.source.files.kafka_queue import KafkaQueue

    every = config.list_every.total_seconds()
    return Notifications(KafkaQueue(config), root, list_every=every)


def _same(file: FoundFile, now: FoundFile | None) -> bool:
    return now is not None and (file.size, file.modified_ns) == (now.size, now.modified_ns)
