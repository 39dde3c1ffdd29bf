"""The folder of the sockets between Spark's JVM and its Python workers, for this user alone.

At a TCP port of the process that forks workers every user of the machine could have one forked.
At a Unix socket only those can who may look into its folder. The folder belongs to one process.
Its lock, which ends with that process, tells the next process of this user which folders are
left over, and keeps `systemd-tmpfiles` from removing a folder that is in use.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "distributary-py-"
_LONGEST_PATH = 100
"""Bytes of a socket's path that every system allows; Linux has 107, Java takes 106 of them."""
_LONGEST_NAME = len("/.00000000-0000-0000-0000-000000000000.sock")
"""Of a socket, as Spark names it."""
_folders: dict[int, Path | None] = {}
"""The folder of this process, by its number: a forked process is another one."""
_making = threading.Lock()


def socket_folder() -> Path | None:
    """Return the folder of this process, made at the first call; None where none can be private.

    It is removed when the process ends. Folders of this user's processes that were killed are
    removed here.
    """
    with _making:
        if os.getpid() not in _folders:
            _folders[os.getpid()] = _new_folder()
        return _folders[os.getpid()]


def _new_folder() -> Path | None:
    # the folder that TMPDIR names may have a path that is too long
    for parent in (tempfile.gettempdir, lambda: "/tmp"):  # noqa: S108 - mkdtemp makes what is in it
        with suppress(OSError):
            if _suits(parent()):
                _remove_leftovers(parent())
                folder = _locked_folder(parent())
                atexit.register(_remove, folder, os.getpid())
                return folder
    return None


def _suits(parent: str) -> bool:
    """Return whether folders in `parent` stay whose they are, and sockets in them can be named."""
    length = len(os.fsencode(parent)) + len(f"/{_PREFIX}12345678") + _LONGEST_NAME
    if not os.path.isabs(parent) or length > _LONGEST_PATH:
        return False
    mode = os.stat(parent).st_mode
    # where others may rename a folder they can put one of their own in its place
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


def _locked_folder(parent: str) -> Path:
    """Make a folder and hold its lock until this process ends. Raise OSError without locks."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        try:
            # never closed: the system drops the lock with the process
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(folder)):
                return Path(folder)
        except (FileNotFoundError, BlockingIOError):
            # a process that starts at the same time took it for a leftover; the next one is another
            continue
        except OSError:
            os.rmdir(folder)
            raise


def _remove_leftovers(parent: str) -> None:
    """Remove the folders of this user whose process has ended."""
    with os.scandir(parent) as entries:
        folders = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for folder in folders:
        with suppress(OSError), _lock_of(folder) as owner:
            if owner == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock_of(folder: str) -> Iterator[int]:
    """Hold the lock of a folder and give its owner; raise OSError where a process has the lock."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(handle).st_uid
    finally:
        os.close(handle)


def _remove(folder: Path, process: int) -> None:
    # a forked process inherits what is to be done at the end
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
