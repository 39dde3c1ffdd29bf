"""The file systems on which change files lie, as a task sees them: a name to bytes.

A local folder is read through links nowhere but at its root. A bucket is read with Arrow's own file
systems, which take the settings that `deltalake` takes, by the same names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, cast

import pyarrow.fs as pa_fs

from distributary.errors import SourceUnavailableError
from distributary.registry.hostile import printable
from distributary.source.files_names import FoundFile
from distributary.stores.known import connected, hidden

_BUFFER_BYTES = 1024 * 1024
_NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""What there is now is a link, a socket, or in a file's place a folder."""
"""Words of so few letters are regions and switches, not secrets."""


class Files(Protocol):
    """Where files lie. Sent to tasks, so it holds no open connection."""

    @property
    def grows(self) -> bool:
        """Whether a file can be seen before its writer is done."""
        ...

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """A file's bytes from the beginning, or `anywhere` for reading in any order.

        Raises FileNotFoundError where it is gone, PermissionError where it may not be read, and
        SourceUnavailableError where the store does not answer.
        """
        ...

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """What it means that a read failed."""
        ...


class Listing(Protocol):
    """What the driver asks about the same files."""

    def files(self) -> Iterable[FoundFile]:
        """Every file that may be new."""
        ...

    def confirm(self) -> None:
        """What was listed last is remembered: it need not be listed again."""
        ...

    def look(self, path: str) -> FoundFile | None:
        """One file as it is now; None if it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder of this machine, or one that is mounted on all of them."""

    root: str
    grows: bool = True

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """A regular file, unless a link leads out of the root."""
        whole = os.path.join(self.root, path)
        try:
            folder = os.path.realpath(os.path.dirname(whole))
            if not f"{folder}/".startswith(os.path.realpath(self.root).rstrip("/") + "/"):
                raise FileNotFoundError(f"{path!r} is not below the root any more")
            # not blocking: what was a file in the listing could be a pipe by now
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(os.path.join(folder, os.path.basename(whole)), flags)
        except PermissionError:
            raise
        except OSError as error:
            if error.errno not in _NO_FILE and not isinstance(error, FileNotFoundError):
                raise self.unavailable(error, path) from error
            raise FileNotFoundError(str(error)) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(f"{path!r} is not a file any more")
        return os.fdopen(handle, "rb", buffering=_BUFFER_BYTES)

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """What a failure of the file system means."""
        return _unavailable(os.path.join(self.root, path), error.strerror or type(error).__name__)


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """A bucket, or a folder in it; `gs://`, `s3://` or `abfss://`."""

    address: str
    options: Mapping[str, str] = field(repr=False)
    grows: bool = False

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """An object."""
        system, base = self._system()
        try:
            if anywhere:
                return cast(BinaryIO, system.open_input_file(f"{base}/{path}"))
            stream = system.open_input_stream(f"{base}/{path}", buffer_size=_BUFFER_BYTES)
            return cast(BinaryIO, stream)
        except FileNotFoundError:
            raise
        except ValueError as error:
            # a name that a bucket may have and Arrow cannot spell, such as one with `//` in it
            raise FileNotFoundError(str(error)) from error
        except OSError as error:
            raise self.unavailable(error, path) from error

    def files(self) -> list[FoundFile]:
        """Every object, by one listing without folders."""
        system, base = self._system()
        try:
            selector = pa_fs.FileSelector(base, recursive=True, allow_not_found=True)
            listed = system.get_file_info(selector)
            bucket = base.partition("/")[0]
            if not listed and system.get_file_info(bucket).type == pa_fs.FileType.NotFound:
                raise FileNotFoundError(f"there is no bucket {bucket}")
        except OSError as error:
            raise self.unavailable(error) from error
        cut = len(base) + 1
        return [
            FoundFile(info.path[cut:], info.size, info.mtime_ns or 0)
            for info in listed
            if info.type == pa_fs.FileType.File
        ]

    def confirm(self) -> None:
        """A bucket is listed as a whole every time: it has no folders that could be still."""

    def look(self, path: str) -> FoundFile | None:
        """One object as it is now."""
        system, base = self._system()
        try:
            info = system.get_file_info(f"{base}/{path}")
        except OSError as error:
            raise self.unavailable(error, path) from error
        found = info.type == pa_fs.FileType.File
        return FoundFile(path, info.size, info.mtime_ns or 0) if found else None

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """What a failure of the store means, without any secret that its words may hold."""
        return _unavailable(f"{self.address}/{path}", hidden(str(error), self.options))

    def _system(self) -> tuple[Any, str]:
        return connected(self.address, tuple(sorted(self.options.items())))


def _unavailable(where: str, evidence: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        "the store of change files does not answer",
        where=printable(where),
        evidence=printable(evidence.partition("\n")[0]),
        next_step="nothing is half done: it is tried again; check source.bucket or source.path, "
        "the network and the credentials",
    )
