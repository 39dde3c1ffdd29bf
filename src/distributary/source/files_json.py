"""JSON files: one event a line, an array of events, or events that go over several lines each.

A line that is no JSON is given as it is: whoever decodes it says what is wrong, and the lines
around it are not affected. In an array nobody can tell where the next event begins, so there the
rest of the file goes with the event that is broken.
"""

from __future__ import annotations

from collections.abc import Iterator

from distributary.errors import ErrorCode
from distributary.source.files_bytes import MOST_LETTER_BYTES, Bytes, FileFaultError
from distributary.source.files_events import (
    EVENTS_PER_BATCH,
    Events,
    Fault,
    parsed_events,
    parsed_json,
)
from distributary.source.files_values import CHUNK_BYTES, Values

_OTHERS = {b"Obj\x01": "Avro", b"PAR1": "Parquet"}
_BOM = b"\xef\xbb\xbf"


def read_json(data: Bytes, longest: int = MOST_LETTER_BYTES) -> Iterator[Events | Fault]:
    """The events of a file, whichever way they are arranged.

    A line that is longer than `longest` is a dead letter later: it is not looked into.
    """
    begin = data.read(CHUNK_BYTES).removeprefix(_BOM)
    other = _OTHERS.get(begin[:4])
    if other:
        reason = f"this is a file of {other}, not of JSON"
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
        # nothing that goes over several lines: the first line is just broken
        begin = values.unread()
    yield from _lines(data, begin, longest)


def _lines(data: Bytes, chunk: bytes, longest: int) -> Iterator[Events | Fault]:
    """One event a line; empty lines do not count."""
    begun = b""
    while True:
        *lines, begun = (begun + chunk).split(b"\n")
        yield from _line_events(lines, longest)
        if len(begun) > MOST_LETTER_BYTES:
            reason = f"a line is longer than {MOST_LETTER_BYTES} bytes"
            yield Fault(ErrorCode.FILE_CORRUPT, reason, begun[:MOST_LETTER_BYTES])
            begun = _after_line(data)
        chunk = data.read(CHUNK_BYTES)
        if not chunk:
            # the last line: whole without a line break, or still being written
            broken = begun.strip() and parsed_json(begun, longest) is None
            if broken and data.back(data.position):
                chunk = data.read(CHUNK_BYTES)
                continue
            yield from _line_events([begun], longest)
            return


def _after_line(data: Bytes) -> bytes:
    """What was read of the next line, at the end of one that is skipped."""
    while chunk := data.read(CHUNK_BYTES):
        _, ended, rest = chunk.partition(b"\n")
        if ended:
            return rest
    return b""


def _line_events(lines: list[bytes], longest: int) -> Iterator[Events]:
    events = [line for line in map(bytes.strip, lines) if line]
    if len(events) == 1 and _is_schema(parsed_json(events[0], longest)):
        return
    for start in range(0, len(events), EVENTS_PER_BATCH):
        some = events[start : start + EVENTS_PER_BATCH]
        yield parsed_events(some, (parsed_json(each, longest) for each in some))


def _array(values: Values) -> Iterator[Events | Fault]:
    values.expect("[")
    if values.next_sign(needed=True) == "]":
        values.expect("]")
    else:
        yield from _gathered(values, between=",", end="]")
    if values.next_sign(needed=False):
        reason = "something follows the end of the array"
        raise FileFaultError(ErrorCode.TRAILING_BYTES, reason, values.rest())


def _gathered(values: Values, *, between: str, end: str) -> Iterator[Events | Fault]:
    """Values until the end's sign, in portions; a fault comes after what was read before it."""
    texts: list[bytes] = []
    parsed: list[object] = []
    size = 0
    try:
        while True:
            text, value = values.take()
            texts.append(text)
            parsed.append(value)
            size += len(text)
            # what is parsed takes ten times as much as its text
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
    """Whether a file's only value is the schema of other files, in Avro's own words."""
    return (
        isinstance(value, dict)
        and value.get("type") == "record"
        and isinstance(value.get("fields"), list)
        and "source_metadata" not in value
    )
