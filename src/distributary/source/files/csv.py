"""Files of CSV, as AWS DMS writes them: a line with the names of the columns, then a row each."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Sequence

from distributary.decode.change.rows import carried_types
from distributary.errors import ErrorCode
from distributary.model.names import printable
from distributary.source.files.bytes import (
    EVENTS_PER_BATCH,
    Bytes,
    Fault,
    FileEvents,
    FileFaultError,
    typed_events,
)

_CHUNK_BYTES = 1 << 20
_BYTES_PER_BATCH = 8 << 20
_MOST_COLUMNS = 20_000


def read_csv(data: Bytes, longest: int, null: str) -> Iterator[FileEvents | Fault]:
    """Read the rows of a file as JSON of texts; a value that is `null` is null.

    A row with more or fewer values than there are columns is a fault. The rest of a file that is no
    CSV or no UTF-8 is one fault, as is a value of more than `longest` bytes.
    """
    csv.field_size_limit(longest)
    rows = csv.reader(_lines(data, longest), strict=True)
    try:
        names = next(rows, None)
        if names is None:
            return
        _refuse_unusable(names, data)
        yield from _events(rows, names, null)
    except (csv.Error, UnicodeDecodeError) as error:
        reason = f"CSV: line {rows.line_num}: {printable(str(error))}"
        raise FileFaultError(ErrorCode.FILE_CORRUPT, reason, data.rest(0)) from error


def _events(
    rows: Iterator[list[str]], names: Sequence[str], null: str
) -> Iterator[FileEvents | Fault]:
    types = carried_types(dict.fromkeys(names, "text"))
    values: list[bytes] = []
    size = 0
    for row in rows:
        if not row:
            continue
        if len(row) != len(names):
            if values:
                yield typed_events(values, types)
                values, size = [], 0
            reason = f"a row has {len(row)} values, and the file {len(names)} columns"
            text = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
            yield Fault(ErrorCode.PAYLOAD_MISMATCH, reason, text)
            continue
        pairs = zip(names, row, strict=True)
        event = {name: None if text == null else text for name, text in pairs}
        values.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
        # each event carries the types
        size += len(values[-1]) + len(types)
        if len(values) >= EVENTS_PER_BATCH or size >= _BYTES_PER_BATCH:
            yield typed_events(values, types)
            values, size = [], 0
    if values:
        yield typed_events(values, types)


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
