"""Data files that are no longer what was written: told by their checksums, else by reading them.

Every file of ours has the CRC-32 of its bytes beside it in the log. It finds what disks, copies and
memory do to bytes, at one percent of the time that writing the file takes; SHA-256 took five. It is
no protection from people: those who can change a file can change the log as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.errors import DamagedFileError, clean
from distributary.store.base import Store

TAG = "distributary.crc32"
"""Under this name the log of a Delta table has the checksum, among the tags of a file."""
_PIECE_BYTES = 16 * 2**20
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)
"""What Arrow raises for bytes that are no Parquet; a store that is away raises OSError as well."""


def checksum(data: Any, before: int = 0) -> int:
    """Return the checksum of bytes that follow others."""
    return zlib.crc32(data, before)


def spelled(value: int) -> str:
    """Return a checksum as logs and manifests have it."""
    return f"{value:08x}"


def differs(found: str, expected: str) -> str:
    """Say what the checksum of a file is, and what it was."""
    return f"its bytes have the checksum {found}, they were written with {expected}"


def damage_in(store: Store, name: str, *, size: int, expected: str | None) -> str | None:
    """Say what is wrong with a file of this size; None if nothing is. Raises OSError.

    A file without a checksum is read to its end, every column of it.
    """
    if expected is not None:
        found = _checksum_of(store, name, size)
        return None if found == expected else differs(found, expected)
    # a store that is away says so here: what is raised below is about the content
    store.read_range(name, 0, 1)
    try:
        with pq.ParquetFile(store.open(name, size=size), page_checksum_verification=True) as file:
            rows = sum(batch.num_rows for batch in file.iter_batches())
            told = file.metadata.num_rows
    except pa.ArrowNotImplementedError:
        # another engine may be able to read it
        return None
    except _UNREADABLE as error:
        return clean(f"{type(error).__name__}: {error}")
    return None if rows == told else f"{rows:,} rows, its own footer says {told:,}"


def _checksum_of(store: Store, name: str, size: int) -> str:
    value = 0
    for start in range(0, size, _PIECE_BYTES):
        value = checksum(store.read_range(name, start, min(_PIECE_BYTES, size - start)), value)
    return spelled(value)


@contextmanager
def reading(store: Store, name: str, *, size: int | None, expected: str | None) -> Iterator[None]:
    """Raise DamagedFileError for what a reader of a damaged file raises.

    Bytes that did not come, or that this version of Arrow cannot read, are no damage: the file is
    looked at once more, and its reader's own error is raised if nothing is wrong with it.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        known = store.size(name) if size is None else size
        found = None if known is None else damage_in(store, name, size=known, expected=expected)
        if found is None:
            raise
        raise damaged(store.address, name, found) from error


def damaged(folder: str, name: str, found: str) -> DamagedFileError:
    """Return the error for a file of a table."""
    table = folder.rstrip("/").rpartition("/")[2]
    return DamagedFileError(
        f"a data file of table {table} is damaged",
        where=f"{folder}/{name}",
        evidence=found,
        next_step=f"`distributary verify {table} --deep` names every damaged file of it, and says "
        "what to do",
        table=table,
    )
