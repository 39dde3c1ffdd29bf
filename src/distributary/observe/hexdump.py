"""Bytes for human eyes, with one of them pointed at."""

from __future__ import annotations

from collections.abc import Iterator

_PER_LINE = 16
_HEAD = 16
_AROUND = 4
"""Lines that are shown: at the beginning, and on each side of the byte pointed at."""


def hexdump(
    data: bytes, *, mark: int | None = None, label: str = "", head: int = _HEAD
) -> Iterator[str]:
    """One line per 16 bytes; long values are shown at their beginning and around the mark."""
    total = (len(data) + _PER_LINE - 1) // _PER_LINE
    marked = None if mark is None else min(mark, max(len(data) - 1, 0)) // _PER_LINE
    skipped = 0
    for line in range(total):
        near = marked is not None and abs(line - marked) <= _AROUND
        if line >= head and not near:
            skipped += 1
            continue
        if skipped:
            yield f"... {skipped * _PER_LINE:,} bytes"
            skipped = 0
        yield _line(data, line)
        if mark is not None and line == marked:
            yield f"{'':{_column(mark % _PER_LINE)}}^^ {label}".rstrip()
    if skipped:
        yield f"... {len(data) - (total - skipped) * _PER_LINE:,} bytes more"
    if marked is not None and mark is not None and mark >= len(data):
        yield f"the data ends before byte {mark}"


def _line(data: bytes, line: int) -> str:
    start = line * _PER_LINE
    row = data[start : start + _PER_LINE]
    halves = row[: _PER_LINE // 2].hex(" "), row[_PER_LINE // 2 :].hex(" ")
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
    return f"{start:08x}  {halves[0]:23}  {halves[1]:23}  |{text}|"


def _column(index: int) -> int:
    return 10 + index * 3 + (1 if index >= _PER_LINE // 2 else 0)
