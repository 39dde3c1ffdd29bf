"""Local folders as stores, and the system calls below them.

A file is written and synced under another name first, and then linked or moved into its place: a
file that is created empty and filled afterwards could be read, or left behind, half written. Errors
of the file system are not interpreted here: OSError passes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa

from distributary.errors import OutsideLakeError
from distributary.store.base import Info, Store, refuse_links

_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS})
NO_NAMING = frozenset({errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EACCES}) | _NO_UNNAMED
"""The errors of systems that have unnamed files but cannot name them, for instance without
/proc."""


_DRAFT = ".draft"
_COPIED_BYTES = 8 * 1024 * 1024
_MOST_BYTES = 2**30
"""The largest size of a file that is read at once; documents of a lake are far smaller."""
_LONGEST_WAIT = 2.0
"""Seconds to wait for another process's `swap`, which takes a moment."""


class Disk(Store):
    """A local folder, absolute or below the working directory."""

    asks_for_free = True

    def __init__(self, folder: str) -> None:
        self.address = os.path.abspath(folder)

    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file and return its version; None if the name is taken."""
        path = self._ready_path(name, durable=durable)
        with _draft(path, data, durable=durable) as draft:
            version = _version(draft.stat())
            try:
                os.link(draft, path)
            except FileExistsError:
                return None
        if durable:
            sync(path.parent)
        return version

    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        """Create or replace a file and return its version."""
        return _version(replace(self._ready_path(name, durable=durable), data, durable=durable))

    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Replace a file if its version is `unchanged`; return the new version, or None."""
        path = self._path(name)
        try:
            folder = os.open(path.parent, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            _lock(folder)
            current = self.look(name)
            if current is None or current.version != unchanged:
                return None
            return _version(replace(path, data, durable=False))
        finally:
            os.close(folder)

    def fetch(self, name: str) -> tuple[bytes, str]:
        """Read a file whole; return its content and version. Raises FileNotFoundError."""
        with self._reading(name) as file:
            status = os.fstat(file.fileno())
            if status.st_size > _MOST_BYTES:
                raise OSError(
                    errno.EFBIG,
                    "the file is too large to be read at once",
                    f"{self.address}/{name}",
                )
            return file.readall(), _version(status)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read a part of a file; the result is shorter where the file ends."""
        with self._reading(name) as file:
            # One call may return fewer bytes than asked for.
            parts = []
            while length > 0 and (data := os.pread(file.fileno(), length, start)):
                parts.append(data)
                start, length = start + len(data), length - len(data)
            return b"".join(parts)

    def look(self, name: str) -> Info | None:
        """Return size, time and version of a file; None if it does not exist."""
        try:
            status = os.stat(self.place(name))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # ValueError is raised for names that no file can have.
            return None
        return None if stat.S_ISDIR(status.st_mode) else _info(name, status)

    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """List the files of a folder; if `recursive`, also below it."""
        infos: list[Info] = []
        for entry in self._entries(folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                infos += self.files(name, recursive=True, drafts=drafts) if recursive else []
            elif (drafts or not entry.name.endswith(_DRAFT)) and entry.name > after:
                try:
                    infos.append(_info(name, entry.stat()))
                except FileNotFoundError:
                    # The file was removed since it was listed.
                    continue
        return infos

    def folders(self, folder: str = "") -> list[str]:
        """List the names of the folders in a folder."""
        return sorted(e.name for e in self._entries(folder) if e.is_dir())

    def exists(self, folder: str = "") -> bool:
        """Return whether the store, or a folder in it, exists."""
        return self._path(folder).is_dir()

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder with all its content, if it exists."""
        path = self._path(folder)
        if path.is_dir():
            shutil.rmtree(path)

    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file to another store, under the same name or as `named`."""
        path = self._path(name)
        if path.is_symlink():
            # A link could have any file of this machine copied.
            raise OSError(errno.ELOOP, "there is a link instead of a file", str(path))
        self._reading(name).close()
        if isinstance(to, Disk):
            place = Path(to.place(named or name))
            place.parent.mkdir(parents=True, exist_ok=True)
            with _draft(place, path) as draft:
                os.replace(draft, place)
            sync(place.parent)
        else:
            to.write(named or name, path.read_bytes())

    def open(self, name: str, *, ahead: int = 0, size: int | None = None) -> pa.NativeFile:
        """Open a file for reading in parts."""
        self._reading(name).close()
        return pa.OSFile(self.place(name))

    def place(self, name: str) -> str:
        """Return the path of a file.

        Raises OutsideLakeError for a link in the lake's own folders.
        """
        path = f"{self.address}/{name}" if name else self.address
        refuse_links(path)
        return path

    def _path(self, name: str) -> Path:
        return Path(self.place(name))

    def _reading(self, name: str) -> io.FileIO:
        """Open a regular file for reading; refuse pipes and devices, which may never end."""
        path = self.place(name)
        # `os.open` finds out twice as fast as `open` that there is no such file. O_NONBLOCK keeps
        # it from waiting for a writer of a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return io.FileIO(handle, "rb")
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise FileNotFoundError(errno.ENOENT, "a folder, not a file", name)
        raise OutsideLakeError(
            "there is a pipe or a device instead of a file of the lake",
            where=path,
            evidence=f"the path is {os.path.realpath(path)}, of kind {stat.filemode(mode)[0]}",
            next_step="find the program that created it, and remove it",
        )

    def _ready_path(self, name: str, *, durable: bool) -> Path:
        """Return the path of a file, after its folder was created if necessary."""
        path = self._path(name)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            if durable:
                sync(path.parent.parent)
        return path

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _info(name: str, status: os.stat_result) -> Info:
    return Info(name, status.st_size, status.st_mtime, _version(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _lock(folder: int) -> None:
    """Lock an open folder; the lock ends with the handle or the process.

    Raises BlockingIOError if another process was stopped while it held the lock.
    """
    until = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def replace(path: Path, data: bytes, *, durable: bool = True) -> os.stat_result:
    """Create or replace a file atomically: a reader sees the old or the new content."""
    with _draft(path, data, durable=durable) as draft:
        status = draft.stat()
        os.replace(draft, path)
    if durable:
        sync(path.parent)
    return status


def unnamed(folder: str, data: bytes) -> int | None:
    """Create an open file without a name in a folder; None if the system has no such files.

    The caller gives it a name and closes it. A file that never got a name leaves nothing behind,
    however the process ends.
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


def give_name(handle: int, path: str) -> str | None:
    """Name an unnamed file and return its version; None if the name is taken.

    The content is only durable if it was synced before; the name is durable after the next sync.
    """
    try:
        # With a folder's handle this is a system call that follows the link of /proc.
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
        return None
    return _version(os.fstat(handle))


def sync(path: Path | str) -> None:
    """Sync a file's content, or the names in a folder, so that they survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(folder: Path) -> None:
    """Sync everything that was written below a folder, so that it survives a crash.

    One call serves a thousand staged files: syncing each of them costs more than writing it.
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
def _draft(path: Path, data: bytes | Path, *, durable: bool = True) -> Iterator[Path]:
    """Write a draft beside the final path, with these bytes or a copy of another file."""
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{_DRAFT}")
    try:
        with draft.open("xb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, _COPIED_BYTES)
            else:
                file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


# A lock for one process at a time, which the system releases when the process ends.


@contextmanager
def held(file: IO[str], *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an open file; call `waiting` if another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
