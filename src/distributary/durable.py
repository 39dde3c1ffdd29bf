"""Files that are there whole or not at all, also after the power went out.

A file is written and synced under another name first and then linked or moved into its place: one
that is created empty and filled afterwards could be read, or left behind, half written. What the
file system says is not interpreted here: OSError passes.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def create(path: Path, data: bytes, *, durable: bool = True) -> os.stat_result | None:
    """Create a file unless the name is taken; what it is, or None when it was taken."""
    with _draft(path, data, durable=durable) as draft:
        found = draft.stat()
        try:
            os.link(draft, path)
        except FileExistsError:
            return None
    if durable:
        sync_folder(path.parent)
    return found


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put a file in place of another, or of none: a reader sees the one or the other."""
    with _draft(path, data, durable=durable) as draft:
        os.replace(draft, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path | str) -> None:
    """Make a new name in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(folder: Path) -> None:
    """Make everything that was written below a folder survive a crash of the machine.

    One call for a thousand staged files: syncing each of them costs more than writing it.
    """
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None) if sys.platform == "linux" else None
    if syncfs is None:
        os.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        syncfs(handle)
    finally:
        os.close(handle)


@contextmanager
def _draft(path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.draft")
    try:
        with draft.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)
