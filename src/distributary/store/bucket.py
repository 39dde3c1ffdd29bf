"""A bucket as a store, and how to log in to it: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from distributary.errors import ConfigError
from distributary.store.base import REQUESTS, Info, Store, hidden, options_of
from distributary.threads import begun

_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
"""Of one request; whoever asks has patience of its own."""
_LONG_LISTING = 10.0
"""Seconds after which a folder's listing that has not ended is suspected of repeating itself."""
_LONGEST_LISTING = 300.0
"""Seconds in which a store lists millions of files of one folder."""


class Bucket(Store):
    """A part of a bucket; `options` where it was not introduced."""

    asks_for_free = False
    connection: Any
    """To the whole bucket; one for all its parts."""

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        self.address = address.rstrip("/")
        self._said = dict(options_of(self.address) if options is None else options)
        parts = urlsplit(self.address)
        self._prefix = parts.path.strip("/")
        # Google tells versions by a number and takes no other word for it, the others by a hash
        self._told_by: Literal["version", "e_tag"] = "version" if parts.scheme == "gs" else "e_tag"
        self.connection = connected(parts.scheme, parts.netloc, tuple(sorted(self._said.items())))

    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file unless the name is taken; its version, or None when it was taken."""
        while True:
            with self._asked("create"):
                try:
                    return self._put(name, data, "create")
                except (AlreadyExistsError, PreconditionError):
                    pass
            # the first try may have won, and its answer been lost
            try:
                return self._is(name, data)
            except FileNotFoundError:
                # somebody else was about to create it, and has not
                continue

    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        """Put a file in place of another, or of none; its version."""
        with self._asked("write"):
            return self._put(name, data, "overwrite")

    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Put a file in place of this very version of it; None where it is another by now."""
        with self._asked("swap"):
            try:
                return self._put(name, data, {self._told_by: unchanged})
            except (PreconditionError, AlreadyExistsError, FileNotFoundError):
                pass
        try:
            return self._is(name, data)
        except FileNotFoundError:
            return None

    def fetch(self, name: str) -> tuple[bytes, str]:
        """All of a file, and which version of it that is. Raises FileNotFoundError."""
        with self._asked("read"):
            found = obstore.get(self.connection, self.key(name))
            return bytes(found.bytes()), self._version(found.meta)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """A part of a file, shorter where the file ends."""
        with self._asked("read"):
            return bytes(
                obstore.get_range(self.connection, self.key(name), start=start, length=length)
            )

    def look(self, name: str) -> Info | None:
        """A file as it is now, or None if there is no such file."""
        with self._asked("look"):
            try:
                return self._info(obstore.head(self.connection, self.key(name)))
            except (FileNotFoundError, ValueError):
                return None

    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """The files in it, or in a folder of it, or also below; there are no drafts."""
        key = self.key(folder)
        with self._asked("list"):
            if after:
                found = list(self._listed(key, offset=f"{key}/{after}"))
                # not every store begins where it is asked to
                split = ((each, each.name.rpartition("/")) for each in found)
                return [each for each, name in split if name[0] == folder and name[2] > after]
            if recursive:
                return list(self._listed(key))
            return [self._info(found) for found in self._in_folder(key)["objects"]]

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders in it, or in a folder of it."""
        with self._asked("list"):
            listed = self._in_folder(self.key(folder))
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"])

    def exists(self, folder: str = "") -> bool:
        """Whether it, or a folder in it, is there."""
        with self._asked("list"):
            # the first page tells: of a log of months there are hundreds, each a request
            return any(obstore.list(self.connection, self.key(folder) or None))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._asked("remove"):
            try:
                obstore.delete(self.connection, self.key(name))
            except FileNotFoundError:
                return

    def remove_folder(self, folder: str = "") -> None:
        """Remove it, or a folder in it, with all that is inside, if it is there."""
        self.remove_files([found.name for found in self.files(folder, recursive=True)])

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove files, those that are there, with one request for many."""
        if len(names) == 1:
            # not every store has a request for many
            self.remove(names[0])
        elif names:
            with self._asked("remove"):
                obstore.delete(self.connection, [self.key(name) for name in names])

    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file to the same name elsewhere, or to another one; the store itself does it."""
        if isinstance(to, Bucket) and to.connection is self.connection:
            with self._asked("copy"):
                obstore.copy(self.connection, self.key(name), to.key(named or name))
        else:
            to.write(named or name, self.read(name))

    def open(
        self, name: str, *, ahead: int = 1024 * 1024, size: int | None = None
    ) -> pa.NativeFile:
        """A file to be read in parts, so many bytes at a time; a small one comes at once."""
        known = self.size(name) if size is None else size
        if known is None:
            raise FileNotFoundError(f"{self.address}/{name}")
        if known <= ahead:
            return pa.BufferReader(self.read(name))
        return pa.PythonFile(io.BufferedReader(_Ranges(self, name, known), ahead), mode="r")

    def _listed(self, key: str, *, offset: str | None = None) -> Iterator[Info]:
        """The files below a key, page by page. Raises OSError for a listing that never ends.

        A server that gives the same page again, with a word to go on from there, would be followed
        until memory ends.
        """
        beginnings: set[str] = set()
        for page in obstore.list(self.connection, key or None, offset=offset):
            _refuse_repeated(page, beginnings)
            yield from map(self._info, page)

    def _in_folder(self, key: str) -> Any:
        """List the files and folders in a key. Raises OSError for a listing that never ends."""
        # commands that list no folder of a bucket start without it
        import asyncio

        # in a thread of its own: the caller's thread may run a loop, and no thread runs two
        listing = begun(lambda: asyncio.run(self._bounded(key)), name="distributary-list")
        try:
            return listing.result()
        except TimeoutError:
            raise OSError(
                f"the listing of {self.address} has no end after {_LONGEST_LISTING:g} seconds"
            ) from None

    async def _bounded(self, key: str) -> Any:
        """List a key while the listing below it, whose pages can be seen, does not repeat itself.

        The library follows the pages of a folder by itself, and gives none before the last.
        """
        import asyncio

        async with asyncio.timeout(_LONGEST_LISTING):
            listing = obstore.list_with_delimiter_async(self.connection, key or None)
            whole = asyncio.ensure_future(listing)
            try:
                await asyncio.wait([whole], timeout=_LONG_LISTING)
                if not whole.done():
                    look = asyncio.create_task(self._look_for_repeats(key))
                    await asyncio.wait([whole, look], return_when=asyncio.FIRST_COMPLETED)
                    if look.done() and not whole.done():
                        look.result()
                    look.cancel()
                return await whole
            finally:
                whole.cancel()

    async def _look_for_repeats(self, key: str) -> None:
        beginnings: set[str] = set()
        async for page in obstore.list(self.connection, key or None):
            _refuse_repeated(page, beginnings)

    def _put(self, name: str, data: bytes, mode: Any) -> str:
        # one request, however large: several would cost more, and cannot be conditional everywhere
        done = obstore.put(self.connection, self.key(name), data, mode=mode, use_multipart=False)
        return self._version(done)

    def _is(self, name: str, data: bytes) -> str | None:
        """The version of a file, if these are its bytes."""
        content, version = self.fetch(name)
        return version if content == data else None

    def _info(self, found: Any) -> Info:
        cut = len(self._prefix) + 1 if self._prefix else 0
        modified = found["last_modified"].timestamp()
        return Info(found["path"][cut:], found["size"], modified, self._version(found))

    def _version(self, found: Any) -> str:
        # a listing of Google's has the hash only, and one of Azure's leaves its quotes out
        version = str(found[self._told_by] or found["e_tag"])
        return version if self._told_by == "version" or '"' in version else f'"{version}"'

    def key(self, name: str) -> str:
        """The name of a file in the bucket."""
        return "/".join(part for part in (self._prefix, name) if part)

    @contextmanager
    def _asked(self, kind: str) -> Iterator[None]:
        """Count a request; what the store says against it is an OSError without secrets."""
        REQUESTS[kind] += 1
        try:
            yield
        except (FileNotFoundError, ValueError) as error:
            # also a name that a bucket may have and the library cannot spell, such as `a//b`
            raise FileNotFoundError(self._words(error)) from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(self._words(error)) from None
        except BaseError as error:
            raise OSError(self._words(error)) from None

    def _words(self, error: Exception) -> str:
        return hidden(str(error).partition("\n")[0], self._said)


def _refuse_repeated(page: Sequence[Any], beginnings: set[str]) -> None:
    """Raise OSError for a page that begins as one before it; add its beginning to the others."""
    if page:
        path = page[0]["path"]
        if path in beginnings:
            raise OSError(f"the listing repeats itself: {path[:200]} comes again and again")
        beginnings.add(path)


class _Ranges(io.RawIOBase):
    """An object as a file, each read of which is a request."""

    def __init__(self, bucket: Bucket, name: str, size: int) -> None:
        self._bucket, self._name, self._size, self._at = bucket, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = self._bucket.read_range(self._name, self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@lru_cache(maxsize=16)
def connected(scheme: str, host: str, options: tuple[tuple[str, str], ...]) -> Any:
    """One connection for all files of a process; settings have the names that `deltalake` knows."""
    known = {name.lower(): value for name, value in options}
    bucket, _, account = host.rpartition("@") if "@" in host else (host, "", "")
    kind: Any
    match scheme:
        case "s3" | "s3a":
            kind = S3Store
            endpoint = next((known[name] for name in _S3_ENDPOINTS if known.get(name)), "")
            if endpoint and not any("region" in name for name in known):
                # a server of one's own has no regions
                known["aws_region"] = "us-east-1"
        case "gs":
            kind, endpoint = GCSStore, ""
        case "abfs" | "abfss" | "az" | "azure" | "adl":
            kind = AzureStore
            endpoint = known.get("azure_storage_endpoint", known.get("azure_endpoint", ""))
            if account and not {"azure_storage_account_name", "account_name"} & known.keys():
                known["azure_storage_account_name"] = account.partition(".")[0]
        case _:
            raise ConfigError(
                f"no object store has addresses with {scheme}://",
                evidence=f"{scheme}://{host}",
                next_step="s3://, gs:// and abfss:// are known, and folders",
            )
    # the library takes all else from the environment by itself
    allowed = any(
        known.pop(name, os.environ.get(name.upper(), "")).lower() == "true" for name in _ALLOW_HTTP
    )
    client = {"allow_http": True} if allowed or endpoint.startswith("http://") else {}
    while True:
        try:
            return kind(bucket, config=known, client_options=client, retry_config=_RETRIES)
        except UnknownConfigurationKeyError as error:
            # a setting of another library, which is given the same ones
            name = re.search(r"'([^']*)'", str(error))
            if name is None or known.pop(name[1], None) is None:
                raise
        except BaseError as error:
            raise ConfigError(
                "the settings of the object store cannot be used",
                where="storage_options",
                evidence=hidden(str(error).partition("\n")[0], dict(options)),
                next_step="check the names and values in storage_options",
            ) from None


_ALLOW_HTTP = ("allow_http", "aws_allow_http", "azure_allow_http")
_S3_ENDPOINTS = (
    "aws_endpoint_url_s3",
    "aws_endpoint_url",
    "aws_endpoint",
    "endpoint_url",
    "endpoint",
)
