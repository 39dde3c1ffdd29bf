"""Detection of damaged data files and commits: by their checksums, otherwise by reading them.

The log holds the CRC-32 of the bytes of every file that we write. It detects errors of disks,
copies and memory, at one percent of the time of writing; SHA-256 took five percent. It does not
protect against people: a person that can change a file can change the log as well.

A commit has its own checksum in its first bytes, as the first key of its description:

    {"commitInfo":{"distributary.crc32":"5f0c11ab","timestamp":1763500000000,...

A checkpoint of a log is a Parquet file: its pages have the checksums of Parquet, and its footer has
one of its own among its key-value metadata, under the key `distributary.footer_crc32`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.errors import DamagedFileError, clean
from distributary.model import layout
from distributary.store.base import Store

TAG = "distributary.crc32"
"""The tag of a file in a Delta log that holds its checksum."""
_SEAL = f'{{"commitInfo":{{"{TAG}":"'.encode()
_INFO = b'{"commitInfo":{'
_DIGITS = slice(len(_SEAL), len(_SEAL) + 8)
_ALIKE = 34
"""The number of matching bytes, of the 37 before a commit's checksum, that make the checksum
count as damaged. A commit without a checksum matches in fewer bytes."""
_FOOTER_KEY = "distributary.footer_crc32"
_BLANK = b"00000000"
"""The digits of a footer's checksum while it is computed."""
FOOTER_SEAL: Mapping[str, str] = {_FOOTER_KEY: _BLANK.decode()}
"""The key-value metadata that a Parquet file needs for `seal_footer`."""
_PIECE_BYTES = 16 * 2**20
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)
"""The exceptions that Arrow raises for invalid Parquet; an unreachable store raises OSError too."""


def checksum(data: Any, before: int = 0) -> int:
    """Return the checksum of bytes, continued from the checksum `before`."""
    return zlib.crc32(data, before)


def spelled(value: int) -> str:
    """Format a checksum as logs and manifests spell it."""
    return f"{value:08x}"


def differs(found: str, expected: str) -> str:
    """Return the sentence that compares a file's checksum with the expected one."""
    return f"the file's bytes have the checksum {found}; they were written with {expected}"


def seal_commit(text: bytes) -> bytes:
    """Add the checksum to the text of a commit, which begins with its description."""
    rest = b'",' + text.removeprefix(_INFO)
    return _SEAL + spelled(checksum(rest)).encode() + rest


def commit_damage(data: bytes) -> str | None:
    """Describe the damage of a commit; None if it is intact, or has no checksum."""
    if data.startswith(_SEAL):
        actual, expected = spelled(checksum(data[_DIGITS.stop :])).encode(), data[_DIGITS]
        return None if actual == expected else differs(actual.decode(), clean(repr(expected)[2:-1]))
    alike = sum(map(int.__eq__, data, _SEAL))
    return "the bytes before its checksum are damaged" if alike >= _ALIKE else None


def seal_footer(data: bytes) -> bytes:
    """Put the checksum of a Parquet file's footer, which has `FOOTER_SEAL`, into the footer."""
    start, digits = _footer_start(data[-8:], len(data)), _digits_of(data)
    value = spelled(checksum(data[start:])).encode()
    return data[: digits.start] + value + data[digits.stop :]


def footer_damage(file: pa.NativeFile) -> str | None:
    """Describe the damage of a Parquet file's footer; None if it is intact, or has no checksum."""
    size = file.size()
    start = _footer_start(file.read_at(8, max(0, size - 8)), size)
    footer = file.read_at(size - start, start)
    digits = _digits_of(footer)
    if not digits.stop:
        return None
    expected = footer[digits]
    blank = footer[: digits.start] + _BLANK + footer[digits.stop :]
    actual = spelled(checksum(blank)).encode()
    return None if actual == expected else differs(actual.decode(), clean(repr(expected)[2:-1]))


def _footer_start(tail: bytes, size: int) -> int:
    return max(0, size - 8 - int.from_bytes(tail[:4], "little"))


def _digits_of(data: bytes) -> slice:
    """Return where the digits of the footer's checksum are; an empty slice if it has none."""
    # Thrift writes the value's type and length between key and value.
    key = _FOOTER_KEY.encode() + b"\x18\x08"
    start = data.rfind(key) + len(key)
    return slice(start, start + len(_BLANK)) if start >= len(key) else slice(0, 0)


def damage_in(store: Store, name: str, *, size: int, expected: str | None) -> str | None:
    """Describe the damage of a file; None if it is intact. Raises OSError.

    A file without a checksum is read to its end, with all columns.
    """
    if expected is not None:
        actual = _checksum_of(store, name, size)
        return None if actual == expected else differs(actual, expected)
    # An unreachable store raises here, so that errors below are about the file's content.
    store.read_range(name, 0, 1)
    try:
        with pq.ParquetFile(store.open(name, size=size), page_checksum_verification=True) as file:
            rows = sum(batch.num_rows for batch in file.iter_batches())
            expected_rows = file.metadata.num_rows
    except pa.ArrowNotImplementedError:
        # Another engine may be able to read this file.
        return None
    except _UNREADABLE as error:
        return clean(f"{type(error).__name__}: {error}")
    return None if rows == expected_rows else f"{rows:,} rows, its footer says {expected_rows:,}"


def _checksum_of(store: Store, name: str, size: int) -> str:
    value = 0
    for start in range(0, size, _PIECE_BYTES):
        value = checksum(store.read_range(name, start, min(_PIECE_BYTES, size - start)), value)
    return spelled(value)


@contextmanager
def reading(store: Store, name: str, *, size: int | None, expected: str | None) -> Iterator[None]:
    """Raise DamagedFileError in place of the error that a damaged file causes.

    Bytes that did not arrive, or that this version of Arrow cannot read, are no damage: the file is
    checked again, and the original error is raised if the file is intact.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        actual_size = store.size(name) if size is None else size
        damage = (
            None
            if actual_size is None
            else damage_in(store, name, size=actual_size, expected=expected)
        )
        if damage is None:
            raise
        raise damaged(store.address, name, damage) from error


def damaged(folder: str, name: str, found: str) -> DamagedFileError:
    """Return the error for a damaged file of a table."""
    table = folder.rstrip("/").rpartition("/")[2]
    if name.startswith("_delta_log/"):
        return DamagedFileError(
            f"a checkpoint of the log of table {table} is damaged",
            where=f"{folder}/{name}",
            evidence=found,
            next_step="put the file back from a copy; without one, where the log still has all "
            "commits since an older checkpoint, or since version 0, remove it and the file "
            "_last_checkpoint beside it: the table is then read from these commits",
            table=table,
        )
    if layout.is_ledger(folder):
        return DamagedFileError(
            f"a data file of the ledger's table {table} is damaged",
            where=f"{folder}/{name}",
            evidence=found,
            next_step="put the file back from a copy; without one, `distributary recover FILE` "
            "writes what it held again, from the manifests of the checkpoint",
            table=table,
        )
    return DamagedFileError(
        f"a data file of table {table} is damaged",
        where=f"{folder}/{name}",
        evidence=found,
        next_step=f"`distributary verify {table} --deep` lists all damaged files, and how to "
        "repair them",
        table=table,
    )
