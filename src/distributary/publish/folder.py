"""A folder on any file system that Arrow knows, and files in it that are whole or not there."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs

from distributary.durable import sync
from distributary.errors import LakeUnavailableError
from distributary.publish.failures import clean
from distributary.stores.known import file_system, without_secrets


class Folder:
    """Paths given to its methods are relative to it."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._files, self._root = file_system(self.path or "/")

    def exists(self) -> bool:
        """Whether it is there, or anything in it."""
        return bool(self._files.get_file_info(self._root).type == pafs.FileType.Directory)

    def size(self, name: str) -> int | None:
        """The size of a file, or None if there is no such file."""
        found = self._files.get_file_info(self._full(name))
        return int(found.size) if found.type == pafs.FileType.File else None

    def folders(self, name: str = "") -> list[str]:
        """The names of the folders in it, or in a folder in it."""
        listed = self._files.get_file_info(
            pafs.FileSelector(self._full(name), allow_not_found=True)
        )
        return sorted(f.base_name for f in listed if f.type == pafs.FileType.Directory)

    def files(self, *, recursive: bool = False) -> list[str]:
        """The files in it, or also below it."""
        selector = pafs.FileSelector(self._root, allow_not_found=True, recursive=recursive)
        listed = self._files.get_file_info(selector)
        cut = len(self._root) + 1
        return [f.path[cut:] for f in listed if f.type == pafs.FileType.File]

    def read(self, name: str) -> bytes:
        """All of a file."""
        with self._files.open_input_stream(self._full(name)) as stream:
            return bytes(stream.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a file that has all of its content as soon as it has its name."""
        # an object has its name only when all of it is there
        local = isinstance(self._files, pafs.LocalFileSystem)
        path = self._draft(name) if local else self._full(name)
        with self._files.open_output_stream(path) as stream:
            stream.write(data)
        if local:
            self._place(path, name)

    def copy(self, name: str, *, to: Folder) -> None:
        """Copy a file to the same name elsewhere; a copy that is cut short never gets the name."""
        if os.path.islink(self._full(name)) and isinstance(self._files, pafs.LocalFileSystem):
            # whoever can write here could have anything copied
            raise OSError(errno.ELOOP, "a link in place of a file", self._full(name))
        draft = to._draft(name)
        pafs.copy_files(
            self._full(name),
            draft,
            source_filesystem=self._files,
            destination_filesystem=to._files,
        )
        to._place(draft, name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if self.size(name) is not None:
            self._files.delete_file(self._full(name))

    def remove_folder(self, name: str = "") -> None:
        """Remove it, or a folder in it, with all that is inside, if it is there."""
        path = self._full(name)
        if self._files.get_file_info(path).type == pafs.FileType.Directory:
            self._files.delete_dir(path)

    def remove_table(self) -> None:
        """Remove a table's folder, its log first and the newest of it first.

        Whoever reads meanwhile finds the table as it was before, and then none.
        """
        log = self._files.get_file_info(
            pafs.FileSelector(self._full("_delta_log"), allow_not_found=True)
        )
        for file in sorted((f.path for f in log if f.is_file), reverse=True):
            self._files.delete_file(file)
        self.remove_folder()

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _place(self, draft: str, name: str) -> None:
        """Give a file its name; on a disk its content is safe from a power cut before it has it."""
        if isinstance(self._files, pafs.LocalFileSystem):
            sync(draft)
        self._files.move(draft, self._full(name))
        if isinstance(self._files, pafs.LocalFileSystem):
            sync(self._full(name).rpartition("/")[0])

    def _draft(self, name: str) -> str:
        folder, _, last = self._full(name).rpartition("/")
        self._files.create_dir(folder, recursive=True)
        return f"{folder}/.{last}.{uuid.uuid4().hex}"


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Errors of file systems become errors of the lake."""
    try:
        yield
    except OSError as error:
        raise LakeUnavailableError(
            "cannot read or write a folder of the lake",
            where=path,
            evidence=clean(without_secrets(str(error), path)) or type(error).__name__,
            next_step="check that the lake can be reached and written to, and has room",
        ) from error
