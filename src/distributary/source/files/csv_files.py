"""Files of CSV: usually a line with the names of the columns, then a row each."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from distributary.decode.change.json_rows import carried_types
from distributary.errors import ErrorCode
from distributary.model.names import printable
from distributary.source.files.file_bytes import (
    Bytes,
    Fault,
    FileEvents,
    FileFaultError,
    nameless_events,
    typed_events,
)

_CHUNK_BYTES = 1 << 20
_BYTES_PER_BATCH = 8 << 20
_MOST_COLUMNS = 20_000
_MOST_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of CSV files."""

    null: str = "NULL"
    """The text that stands for null."""
    header: bool = True
    """Whether the first line names the columns."""
    delimiter: str = ","
    quote: str = '"'
    infer: bool = True
    """Whether columns of numbers have numbers, and not texts."""
    typed: bool = True
    """Whether rows are change events, which carry the types of their columns: all are text."""


def read_csv(data: Bytes, longest: int, dialect: Dialect) -> Iterator[FileEvents | Fault]:
    """Read the rows of a file as JSON.

    A row with more or fewer values than there are columns is a fault. The rest of a file that is no
    CSV or no UTF-8 is one fault, as is a value of more than `longest` bytes; in files of records
    only the line is, and the rows behind it are read.
    """
    csv.field_size_limit(longest)
    rows = _Rows(_lines(data, longest), dialect)
    try:
        first = rows.next()
        if first is None:
            return
        names = first if dialect.header else [f"column_{at}" for at in range(1, len(first) + 1)]
        _refuse_unusable(names, data)
        yield from _events(rows, [] if dialect.header else [first], names, dialect)
    except (csv.Error, UnicodeDecodeError) as error:
        reason = f"CSV: line {rows.line}: {printable(str(error))}"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0)) from error


class _Rows:
    """The rows of a file, with the lines that they are in."""

    def __init__(self, lines: Iterator[str], dialect: Dialect) -> None:
        self._lines = lines
        self._taken: list[str] = []
        self._reader = csv.reader(
            self._noting(), strict=True, delimiter=dialect.delimiter, quotechar=dialect.quote
        )

    @property
    def line(self) -> int:
        """Return the number of the last line."""
        return self._reader.line_num

    @property
    def text(self) -> str:
        """Return the lines of the last row."""
        return "".join(self._taken).rstrip("\r\n")

    def next(self) -> list[str] | None:
        """Return the next row; None at the end."""
        self._taken.clear()
        return next(self._reader, None)

    def _noting(self) -> Iterator[str]:
        for line in self._lines:
            self._taken.append(line)
            yield line


def _events(
    rows: _Rows, waiting: list[list[str]], names: Sequence[str], dialect: Dialect
) -> Iterator[FileEvents | Fault]:
    events = _typed(names, dialect.null) if dialect.typed else _Inferred(names, dialect)
    size = sum(map(len, names))
    while True:
        row: list[str] | None
        fault = None
        try:
            row = rows.next()
        except csv.Error as error:
            if dialect.typed:
                raise
            row, fault = [], Fault(ErrorCode.PAYLOAD_MISMATCH, f"CSV: {error}", None)
        if row and len(row) != len(names):
            counts = f"a row has {len(row)} values, and the file {len(names)} columns"
            fault = Fault(ErrorCode.PAYLOAD_MISMATCH, counts, None)
        elif row:
            waiting.append(row)
            size += sum(map(len, row))
        full = len(waiting) >= _MOST_ROWS or size >= _BYTES_PER_BATCH
        if waiting and (row is None or fault is not None or full):
            yield events(waiting)
            waiting, size = [], 0
        if fault is not None:
            text = rows.text.encode("utf-8", "replace")
            yield Fault(fault.code, f"line {rows.line}: {printable(fault.reason)}", text)
        if row is None:
            return


def _typed(names: Sequence[str], null: str) -> Callable[[Sequence[Sequence[str]]], FileEvents]:
    """Return a function that builds change events, which carry the types of their columns."""
    types = carried_types(dict.fromkeys(names, "text"))

    def events(rows: Sequence[Sequence[str]]) -> FileEvents:
        values = []
        for row in rows:
            pairs = zip(names, row, strict=True)
            event = {name: None if text == null else text for name, text in pairs}
            values.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
        return typed_events(values, types)

    return events


# Types of the columns of records.

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(
    # no more digits than a floating-point number has
    r"(?=[0-9.-]{1,16}(?:[eE]|$))-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
)
_DIGITS = re.compile(r"[0-9]+")
_TRUTH = {"true": True, "false": False}


def _number(text: str) -> Any:
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _truth(text: str) -> Any:
    return _TRUTH.get(text.lower(), text)


def _same(text: str) -> Any:
    return text


class _Inferred:
    """A builder of records, whose columns have the type of most of their first values."""

    def __init__(self, names: Sequence[str], dialect: Dialect) -> None:
        self._names = names
        self._null = dialect.null
        known = None if dialect.infer else _same
        self._readers: list[Callable[[str], Any] | None] = [known for _ in names]

    def __call__(self, rows: Sequence[Sequence[str]]) -> FileEvents:
        columns = []
        for place, texts in enumerate(zip(*rows, strict=True)):
            reader = self._readers[place] or self._choose(texts)
            self._readers[place] = reader
            read = reader or _same
            columns.append([None if text == self._null else read(text) for text in texts])
        records = [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]
        return nameless_events(pa.array(map(orjson.dumps, records), pa.binary()))

    def _choose(self, texts: Sequence[str]) -> Callable[[str], Any] | None:
        """Return the reader that most values of a column fit; None if there is no value."""
        values = [text for text in texts if text != self._null]
        if not values:
            return None
        if any(_DIGITS.fullmatch(text) and not _WHOLE.fullmatch(text) for text in values):
            # postal codes and long account numbers lose digits as numbers
            return _same
        for reader in (_truth, _number):
            fitting = sum(not isinstance(reader(text), str) for text in values)
            if 2 * fitting > len(values):
                return reader
        return _same


def _refuse_unusable(names: Sequence[str], data: Bytes) -> None:
    """Raise FileFaultError for a first line that cannot be the names of columns."""
    reason = ""
    if len(names) > _MOST_COLUMNS:
        reason = f"there are {len(names)} columns"
    elif len(set(names)) != len(names) or not all(names):
        reason = "the first line does not name the columns: a name is empty or there twice"
    if reason:
        raise FileFaultError(ErrorCode.FILE_CORRUPT, f"CSV: {reason}", data.rest(0))


def _lines(data: Bytes, longest: int) -> Iterator[str]:
    """Yield lines with their ends; the last one may have none."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    while chunk := data.read(_CHUNK_BYTES):
        # other ends of lines may stand in a value
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from (f"{line}\n" for line in lines)
        if len(rest) > longest:
            raise csv.Error(f"a line has more than {longest} bytes")
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest
