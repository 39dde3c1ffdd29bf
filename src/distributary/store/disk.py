"""A folder of this machine as a store, and the calls below it.

A file is written and synced under another name first and then linked or moved into its place: one
that is created empty and filled afterwards could be read, or left behind, half written. What the
file system says is not interpreted here: OSError passes.
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
"""What a system says that has unnamed files, and will not give one a name: no /proc, for one."""


_DRAFT = ".draft"
_COPIED_BYTES = 8 * 1024 * 1024
_MOST_BYTES = 2**30
"""Of a file that is read at once: no document of a lake is nearly as large."""
_LONGEST_WAIT = 2.0
"""Seconds for another process to finish its own `swap`, which takes a moment."""


class Disk(Store):
    """A folder, absolute or below the working directory."""

    asks_for_free = True

    def __init__(self, folder: str) -> None:
        self.address = os.path.abspath(folder)

    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file unless the name is taken; its version, or None when it was taken."""
        path = self._made(name, durable=durable)
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
        """Put a file in place of another, or of none; its version."""
        return _version(replace(self._made(name, durable=durable), data, durable=durable))

    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Put a file in place of this very version of it; None where it is another by now."""
        path = self._path(name)
        try:
            folder = os.open(path.parent, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            _lock(folder)
            found = self.look(name)
            if found is None or found.version != unchanged:
                return None
            return _version(replace(path, data, durable=False))
        finally:
            os.close(folder)

    def fetch(self, name: str) -> tuple[bytes, str]:
        """All of a file, and which version of it that is. Raises FileNotFoundError."""
        with self._reading(name) as file:
            found = os.fstat(file.fileno())
            if found.st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, "too large to be read at once", f"{self.address}/{name}")
            return file.readall(), _version(found)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """A part of a file, shorter where the file ends."""
        with self._reading(name) as file:
            # of a file without a buffer, one call may give less than all
            parts = []
            while length > 0 and (data := os.pread(file.fileno(), length, start)):
                parts.append(data)
                start, length = start + len(data), length - len(data)
            return b"".join(parts)

    def look(self, name: str) -> Info | None:
        """A file as it is now, or None if there is no such file."""
        try:
            found = os.stat(self.place(name))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # the last for a name that no file can have
            return None
        return None if stat.S_ISDIR(found.st_mode) else _info(name, found)

    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """The files in it, or in a folder of it, or also below."""
        found: list[Info] = []
        for entry in self._entries(folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                found += self.files(name, recursive=True, drafts=drafts) if recursive else []
            elif (drafts or not entry.name.endswith(_DRAFT)) and entry.name > after:
                try:
                    found.append(_info(name, entry.stat()))
                except FileNotFoundError:
                    # gone since it was listed
                    continue
        return found

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders in it, or in a folder of it."""
        return sorted(e.name for e in self._entries(folder) if e.is_dir())

    def exists(self, folder: str = "") -> bool:
        """Whether it, or a folder in it, is there."""
        return self._path(folder).is_dir()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str = "") -> None:
        """Remove it, or a folder in it, with all that is inside, if it is there."""
        path = self._path(folder)
        if path.is_dir():
            shutil.rmtree(path)

    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file to the same name elsewhere, or to another one."""
        path = self._path(name)
        if path.is_symlink():
            # whoever can write here could have anything copied
            raise OSError(errno.ELOOP, "a link in place of a file", str(path))
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
        """A file to be read in parts."""
        self._reading(name).close()
        return pa.OSFile(self.place(name))

    def place(self, name: str) -> str:
        """The path of a file. Raises OutsideLakeError for a link in the lake's own folders."""
        path = f"{self.address}/{name}" if name else self.address
        refuse_links(path)
        return path

    def _path(self, name: str) -> Path:
        return Path(self.place(name))

    def _reading(self, name: str) -> io.FileIO:
        """Open a file to read it: only what is on a disk, for a pipe or a device may never end."""
        path = self.place(name)
        # not `open`, which takes twice as long to find out that there is no such file; and a pipe
        # to which nobody writes must not be waited for
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return io.FileIO(handle, "rb")
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise FileNotFoundError(errno.ENOENT, "a folder, not a file", name)
        raise OutsideLakeError(
            "a pipe or a device stands in the place of a file of the lake",
            where=path,
            evidence=f"it is {os.path.realpath(path)}, of kind {stat.filemode(mode)[0]}",
            next_step="find out who made it, and remove it",
        )

    def _made(self, name: str, *, durable: bool) -> Path:
        """The path of a file, in a folder that is there."""
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


def _info(name: str, found: os.stat_result) -> Info:
    return Info(name, found.st_size, found.st_mtime, _version(found))


def _version(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _lock(folder: int) -> None:
    """Hold the lock of an open folder, which goes with the handle or the process.

    Raises BlockingIOError where another process was stopped while it held it.
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
    """Put a file in place of another, or of none: a reader sees the one or the other."""
    with _draft(path, data, durable=durable) as draft:
        found = draft.stat()
        os.replace(draft, path)
    if durable:
        sync(path.parent)
    return found


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


def give_name(handle: int, path: str) -> str | None:
    """Put an unnamed file in its place; its version, or None when the name was taken.

    What was written is durable only if it was before; the name is, after the next sync.
    """
    try:
        # with a folder's handle it is a system call that follows the link of /proc
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
        return None
    return _version(os.fstat(handle))


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
def _draft(path: Path, data: bytes | Path, *, durable: bool = True) -> Iterator[Path]:
    """A file beside its place with these bytes, or with those of another file."""
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
