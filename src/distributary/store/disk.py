"""Files that are there whole or not at all, also after the power went out.

A file is written and synced under another name first and then linked or moved into its place: one
that is created empty and filled afterwards could be read, or left behind, half written. What the
file system says is not interpreted here: OSError passes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS})
NO_NAMING = frozenset({errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EACCES}) | _NO_UNNAMED
"""What a system says that has unnamed files, and will not give one a name: no /proc, for one."""


def create(path: Path, data: bytes, *, durable: bool = True) -> os.stat_result | None:
    """Create a file unless the name is taken; what it is, or None when it was taken."""
    with _draft(path, data, durable=durable) as draft:
        found = draft.stat()
        try:
            os.link(draft, path)
        except FileExistsError:
            return None
    if durable:
        sync(path.parent)
    return found


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put a file in place of another, or of none: a reader sees the one or the other."""
    with _draft(path, data, durable=durable) as draft:
        os.replace(draft, path)
    if durable:
        sync(path.parent)


def unnamed(folder: str, data: bytes) -> int | None:
    """A file in a folder that has no name yet, open; None where there are no such files.

    Its owner gives it a name and closes it. Nothing is left of one that never got a name, however
    the process ends.
    """
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return None
    try:
        handle = os.open(folder, flag | os.O_WRONLY, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
    except BaseException:
        os.close(handle)
        raise
    return handle


def give_name(handle: int, path: str) -> os.stat_result | None:
    """Put an unnamed file in its place; what it is, or None when the name was taken.

    What was written is durable only if it was before; the name is, after the next sync.
    """
    try:
        # with a folder's handle it is a system call that follows the link of /proc
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
        return None
    return os.fstat(handle)


def sync(path: Path | str) -> None:
    """Make a file's content, or the names in a folder, survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
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


# One process at a time, by a lock that the system drops with its process: none is left behind.


@contextmanager
def held(file: IO[str], *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an open file; `waiting` is told when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
