"""The private folder of the sockets between Spark's JVM and its Python workers.

At a TCP port of the process that forks workers, every user of the machine could have a worker
forked. A Unix socket is open only to users that may enter its folder. The folder belongs to one
process. Its lock, which ends with that process, shows the user's next process which folders are
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
"""The bytes of a socket's path that every system allows; Linux has 107, Java uses 106 of them."""
_LONGEST_NAME = len("/.00000000-0000-0000-0000-000000000000.sock")
"""The length of a socket's name, as Spark builds it."""
_folders: dict[int, Path | None] = {}
"""The folder of this process, by process id: a forked process is another one."""
_making = threading.Lock()


def socket_folder() -> Path | None:
    """Return the folder of this process, created at the first call; None if none can be private.

    It is removed when the process ends. Folders of this user's killed processes are removed here.
    """
    with _making:
        if os.getpid() not in _folders:
            _folders[os.getpid()] = _new_folder()
        return _folders[os.getpid()]


def _new_folder() -> Path | None:
    # The folder that TMPDIR names may have a path that is too long.
    for parent in (tempfile.gettempdir, lambda: "/tmp"):  # noqa: S108 - mkdtemp makes what is in it
        with suppress(OSError):
            if _suits(parent()):
                _remove_leftovers(parent())
                folder = _locked_folder(parent())
                atexit.register(_remove, folder, os.getpid())
                return folder
    return None


def _suits(parent: str) -> bool:
    """Return whether folders in `parent` are safe from others, and short enough for sockets."""
    length = len(os.fsencode(parent)) + len(f"/{_PREFIX}12345678") + _LONGEST_NAME
    if not os.path.isabs(parent) or length > _LONGEST_PATH:
        return False
    mode = os.stat(parent).st_mode
    # If others may rename a folder, they can replace it by their own.
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


def _locked_folder(parent: str) -> Path:
    """Create a folder and hold its lock until this process ends. Raises OSError without locks."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        try:
            # The handle is never closed: the system releases the lock with the process.
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(folder)):
                return Path(folder)
        except (FileNotFoundError, BlockingIOError):
            # A process that starts at the same time took the folder for a leftover: create another
            # one.
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
    """Lock a folder and yield its owner's id; raise OSError if a process holds the lock."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(handle).st_uid
    finally:
        os.close(handle)


def _remove(folder: Path, process: int) -> None:
    # A forked process inherits the functions to run at the end.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
