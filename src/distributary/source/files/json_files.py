"""JSON files: one event per line, an array of events, or events over several lines each.

A line that is no JSON is passed on unchanged: its decoder reports the error, and the lines around
it are not affected. In an array the start of the next event is unknown after an error, so there the
rest of the file goes with the broken event.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Positions, coded, combined, nulls, slices
from distributary.decode.change.datastream.decoder import usual_moments
from distributary.decode.json.columns import read_texts
from distributary.decode.json.pattern import familiar
from distributary.errors import ErrorCode
from distributary.model.record import Shapes
from distributary.source.files.file_bytes import (
    EVENTS_PER_BATCH,
    MOST_LETTER_BYTES,
    NAMES,
    Bytes,
    Fault,
    FileEvents,
    FileFaultError,
    claim_of,
    micros,
    nameless_events,
    parsed_events,
    parsed_json,
)

# JSON values one after the other, from a file of any length.

CHUNK_BYTES = 4 * 1024 * 1024

_SPACE = re.compile(r"[ \t\r\n]*")
_NEAR_THE_END = 32
"""Characters from the end of the text within which an error may be a cut word, number or escape."""


class Values:
    """A parser of consecutive values in a text that is read as needed."""

    def __init__(self, data: Bytes, begin: bytes) -> None:
        self._data = data
        # Bytes that are no UTF-8 pass unchanged: the event's decoder reports the error.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = self._decoder.decode(begin)
        self._at = 0
        self._ended = False
        self._parse = json.JSONDecoder().raw_decode

    def has_next(self) -> bool:
        """Return whether a whole value comes next."""
        self._skip(needed=True)
        return self._next() is not None

    def take(self) -> tuple[bytes, object]:
        """Take the next value; return its bytes and its parsed form."""
        self._skip(needed=True)
        parsed = self._next()
        if parsed is None:
            raise self._fault()
        value, end = parsed
        text = self._text[self._at : end].encode("utf-8", "surrogateescape")
        self._at = end
        return text, value

    def next_sign(self, *, needed: bool) -> str:
        """Return the next character that is not space; empty at the end.

        If one is `needed`, the end may be that of a file which is still being written.
        """
        self._skip(needed=needed)
        return self._text[self._at : self._at + 1]

    def expect(self, sign: str) -> None:
        """Skip a character that must come next."""
        if self.next_sign(needed=bool(sign))[: len(sign)] != sign:
            raise self._fault()
        self._at += len(sign)

    def rest(self) -> bytes:
        """Return everything that was not taken, as far as a dead letter holds it."""
        kept = self.unread()[:MOST_LETTER_BYTES]
        return kept + self._data.read(MOST_LETTER_BYTES - len(kept))

    def unread(self) -> bytes:
        """Return the bytes that were read from the file and not taken."""
        incomplete, _ = self._decoder.getstate()
        return self._text[self._at :].encode("utf-8", "surrogateescape") + incomplete

    def _next(self) -> tuple[object, int] | None:
        """Parse the value that begins here; return it with its end, or None if it is invalid."""
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = len(self._text) - error.pos < _NEAR_THE_END or "Untermin" in error.msg
                long = len(self._text) - self._at > MOST_LETTER_BYTES
                if long or not cut or not self._more(needed=True):
                    return None
                continue
            except (ValueError, RecursionError):
                return None
            # A number at the end of the text may continue.
            if end < len(self._text) or not self._more(needed=False):
                return value, end

    def _skip(self, *, needed: bool) -> None:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._more(needed=needed):
                return

    def _more(self, *, needed: bool) -> bool:
        """Read on, and double a long text, so that a long value is not parsed too often."""
        size = max(CHUNK_BYTES, len(self._text) - self._at)
        chunk = self._data.read(size)
        if not chunk and needed and not self._ended and self._data.back(self._data.position):
            chunk = self._data.read(size)
        # Data that was needed and did not come is not waited for again.
        self._ended = needed and not chunk
        self._text = self._text[self._at :] + self._decoder.decode(chunk, final=not chunk)
        self._at = 0
        return bool(chunk)

    def _fault(self) -> FileFaultError:
        if self._ended:
            reason = "the file ends inside of an event, or before the end of its array"
            return FileFaultError(ErrorCode.FILE_TRUNCATED, reason, self.rest())
        return FileFaultError(ErrorCode.FILE_CORRUPT, "an event is broken", self.rest())


_OTHERS = {b"Obj\x01": "Avro", b"PAR1": "Parquet"}
_BOM = b"\xef\xbb\xbf"


def read_json(
    data: Bytes,
    longest: int = MOST_LETTER_BYTES,
    shapes: Shapes | None = None,
    *,
    named: bool = True,
) -> Iterator[FileEvents | Fault]:
    """Read the events of a file, however they are arranged.

    A line longer than `longest` becomes a dead letter later, and is not parsed. Lines that match
    one of the `shapes` are not parsed either, nor are lines of records, which are not `named` as
    change events are.
    """
    begin = data.read(CHUNK_BYTES).removeprefix(_BOM)
    other = _OTHERS.get(begin[:4])
    if other:
        reason = f"the file is {other}, not JSON"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0))
    content = begin.lstrip()
    if content[:1] == b"[":
        yield from _array(Values(data, begin))
        return
    line = content.partition(b"\n")[0].rstrip()
    if line[:1] == b"{" and line[-1:] != b"}" and parsed_json(line, longest) is None:
        values = Values(data, begin)
        if values.has_next():
            yield from _gathered(values, between="", end="")
            return
        # The file does not have events over several lines: its first line is broken.
        begin = values.unread()
    reader = partial(_line_events, longest=longest, shapes=shapes) if named else _line_records
    yield from _lines(data, begin, longest, reader)


def _lines(
    data: Bytes, chunk: bytes, longest: int, reader: Callable[[bytes], Iterator[FileEvents]]
) -> Iterator[FileEvents | Fault]:
    """Read one event per line; empty lines do not count."""
    partial = b""
    while True:
        lines, ended, partial = (partial + chunk).rpartition(b"\n")
        yield from reader(lines + ended)
        if len(partial) > MOST_LETTER_BYTES:
            reason = f"a line is longer than {MOST_LETTER_BYTES} bytes"
            yield Fault(ErrorCode.FILE_CORRUPT, reason, partial[:MOST_LETTER_BYTES])
            partial = _after_line(data)
        chunk = data.read(CHUNK_BYTES)
        if not chunk:
            # The last line: complete without a line break, or still being written.
            broken = partial.strip() and parsed_json(partial, longest) is None
            if broken and data.back(data.position):
                chunk = data.read(CHUNK_BYTES)
                continue
            yield from reader(partial + b"\n")
            return


def _after_line(data: Bytes) -> bytes:
    """Skip the rest of a line; return the beginning of the next line."""
    while chunk := data.read(CHUNK_BYTES):
        _, ended, rest = chunk.partition(b"\n")
        if ended:
            return rest
    return b""


def _line_events(text: bytes, longest: int, shapes: Shapes | None) -> Iterator[FileEvents]:
    """Yield the events of lines that all have their line break."""
    events = _texts(text)
    if len(events) == 1 and _is_schema(parsed_json(events[0].as_py(), longest)):
        return
    for start in range(0, len(events), EVENTS_PER_BATCH):
        some = events[start : start + EVENTS_PER_BATCH]
        short = pc.max(pc.binary_length(some)).as_py() <= longest
        matched = familiar_events(some, shapes) if short and shapes is not None else None
        if matched is None or matched.familiar is None:
            yield _read_events(some, longest, short=short)
            continue
        others = np.flatnonzero(~matched.familiar)
        if len(others):
            read = _read_events(some.take(pa.array(others)), longest, short=short)
            matched = matched.with_others(others, read)
        yield matched


def _line_records(text: bytes) -> Iterator[FileEvents]:
    """Yield the records of lines that all have their line break."""
    records = _texts(text)
    for start in range(0, len(records), EVENTS_PER_BATCH):
        yield nameless_events(records[start : start + EVENTS_PER_BATCH])


def _texts(text: bytes) -> pa.BinaryArray:
    """Split lines that all have their line break; empty ones do not count."""
    events = _objects(text)
    if events is None:
        lines = map(bytes.strip, text.split(b"\n"))
        events = pa.array([line for line in lines if line], pa.binary())
    return events


def _read_events(texts: pa.BinaryArray, longest: int, *, short: bool) -> FileEvents:
    """Parse events: all at once if none is too long, otherwise one by one."""
    events = usual_events(texts) if short else None
    if events is not None:
        return events
    lines = texts.to_pylist()
    return parsed_events(lines, (parsed_json(text, longest) for text in lines))


def _objects(text: bytes) -> pa.BinaryArray | None:
    """Split lines that begin and end like objects, without a Python object for each.

    Returns None if there are other lines: empty ones, or lines with surrounding blanks.
    """
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.append(0, ends + 1)[:-1]
    if (data[starts] != ord("{")).any() or (data[ends - 1] != ord("}")).any():
        return None
    if len(ends) < 2:
        return pa.array([text[:-1]] if text else [], pa.binary())
    return slices(pa.array([text], pa.binary()), starts, ends)


def _array(values: Values) -> Iterator[FileEvents | Fault]:
    values.expect("[")
    if values.next_sign(needed=True) == "]":
        values.expect("]")
    else:
        yield from _gathered(values, between=",", end="]")
    if values.next_sign(needed=False):
        reason = "something follows the end of the array"
        raise FileFaultError(ErrorCode.TRAILING_BYTES, reason, values.rest())


def _gathered(values: Values, *, between: str, end: str) -> Iterator[FileEvents | Fault]:
    """Yield values up to the end's character, in portions.

    A fault comes after the values before it.
    """
    texts: list[bytes] = []
    parsed: list[object] = []
    size = 0
    try:
        while True:
            text, value = values.take()
            texts.append(text)
            parsed.append(value)
            size += len(text)
            # Parsed values take ten times as much memory as their text.
            if size > CHUNK_BYTES or len(texts) >= EVENTS_PER_BATCH:
                yield parsed_events(texts, parsed)
                texts, parsed, size = [], [], 0
            if values.next_sign(needed=bool(end)) == end:
                values.expect(end)
                break
            values.expect(between)
    except FileFaultError:
        if texts:
            yield parsed_events(texts, parsed)
        raise
    if texts and not (len(texts) == 1 and _is_schema(parsed[0])):
        yield parsed_events(texts, parsed)


def _is_schema(value: object) -> bool:
    """Return whether a file's only value is an Avro schema of other files."""
    return (
        isinstance(value, dict)
        and value.get("type") == "record"
        and isinstance(value.get("fields"), list)
        and "source_metadata" not in value
    )


# The tables and times of many events at once.

_SAMPLES = 8
"""The number of events that are sampled for their tables: most files have events of one table."""
_SOURCE, _TIME = "source_metadata", "source_timestamp"
_LONGEST_TIME = 40
_BLANK, _QUOTE = b' "'
_NAMED_FIELDS = pa.struct(
    [(_SOURCE, pa.struct([(name, pa.string()) for name in NAMES])), (_TIME, pa.string())]
)


def familiar_events(array: pa.BinaryArray, shapes: Shapes) -> FileEvents | None:
    """Match events against known shapes and find their claims and times; None if none matches.

    The regular expression of a shape matches them, with the table's names in their places: see
    `pattern`.
    """
    claims, tables = np.full(len(array), -1), list[bytes]()
    for place in np.unique(np.linspace(0, len(array) - 1, _SAMPLES, dtype=np.int64)).tolist():
        names = _names(array[place].as_py()) if claims[place] < 0 else None
        claim = claim_of(*names.values()) if names is not None else None
        shape = shapes(claim.decode()) if claim is not None else None
        if names is None or claim is None or not shape:
            continue
        left = np.flatnonzero(claims < 0)
        texts = array if len(left) == len(array) else array.take(pa.array(left))
        named = {f"{_SOURCE}.{name}": text for name, text in names.items()}
        claims[left[familiar(texts, shape, named, plain=_TIME)]] = len(tables)
        tables.append(claim)
    times = _times(array, claims)
    matched = (claims >= 0) & ~nulls(times)
    if not matched.any():
        return None
    codes = pa.array(claims, mask=~matched)
    return FileEvents(array, pa.array(tables, pa.binary()).take(codes), times, matched)


def _names(event: bytes) -> dict[str, str | None] | None:
    """Return the names of the table in an event; None if they are no texts."""
    try:
        source = orjson.loads(event)[_SOURCE]
        names = {name: source.get(name) for name in NAMES}
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None
    return names if all(isinstance(name, str | None) for name in names.values()) else None


def _times(array: pa.BinaryArray, claims: Positions) -> pa.Int64Array:
    """Return the times of events with a claim; null for the others and for unusual times."""
    rows = np.flatnonzero(claims >= 0)
    if not len(rows):
        return pa.nulls(len(array), pa.int64())
    texts = array if len(rows) == len(array) else array.take(pa.array(rows))
    key = f'"{_TIME}":'.encode()
    # The shape's expression ensures that the first field of this name is the right one, in ASCII.
    place = pc.find_substring(texts, pattern=key).to_numpy() + len(key)
    _, offsets, content = texts.buffers()
    data = np.frombuffer(content, np.uint8)
    start = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts)] + place
    start = start + (data[start] == _BLANK) + 1
    window = start[:, None] + np.arange(_LONGEST_TIME)
    ends = data[np.minimum(window, len(data) - 1)] == _QUOTE
    texts_of_times = slices(texts, start, start + np.argmax(ends, axis=1)).cast(pa.string())
    usual = usual_moments(texts_of_times)
    times = _micros(texts_of_times) if usual is None else pa.array(usual)
    where = np.full(len(array), -1)
    where[rows] = np.arange(len(rows))
    return times.take(pa.array(where, mask=where < 0))


def usual_events(array: pa.BinaryArray) -> FileEvents | None:
    """Let Arrow read the tables and times of all events at once; None if it cannot."""
    fields = read_texts(array, _NAMED_FIELDS)
    if fields is None:
        return None
    metadata, times = fields.flatten()
    names = metadata.flatten()
    # tables are few: each combination of names becomes a claim once
    claims, rows = combined(map(coded, names), len(array))
    tables = [claim_of(*(column[row].as_py() for column in names)) for row in rows]
    return FileEvents(array, pa.array(tables, pa.binary()).take(pa.array(claims)), _micros(times))


def _micros(times: pa.StringArray) -> pa.Int64Array:
    """Parse texts as times, each distinct text once."""
    coded = times.dictionary_encode()
    parsed = [micros(text) for text in coded.dictionary.to_pylist()]
    return pa.array(parsed, pa.int64()).take(coded.indices)
