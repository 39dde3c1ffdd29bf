"""Files that are there whole or not at all, also after the power went out."""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from pathlib import Path

from distributary.errors import LakeUnavailableError


def create_exclusively(path: Path, text: str) -> bool:
    """Create a file with all of its content, unless it exists. True if this call created it.

    The content is written and synced under another name first and then linked, because a file that
    is created empty and filled afterwards could be seen, or left behind, half written.
    """
    draft = _draft(path, text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    sync_folder(path.parent)
    return True


def replace_atomically(path: Path, text: str, *, sync: bool = True) -> None:
    """Put a new content in place of the old one: a reader sees the one or the other."""
    os.replace(_draft(path, text, sync=sync), path)
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
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


def _draft(path: Path, text: str, *, sync: bool = True) -> Path:
    draft = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError as error:
        raise LakeUnavailableError(
            "cannot write a file",
            where=str(path),
            evidence=error.strerror or type(error).__name__,
            next_step="check that the folder is writable and that the disk has room",
        ) from error
    return draft
