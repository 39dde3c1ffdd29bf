"""Buckets as stores, and the connections to them: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

import io
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypeVar
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

T = TypeVar("T")

_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
"""The library's retries for one request; callers retry on their own as well."""
_LONG_LISTING = 10.0
"""Seconds after which the listing of a folder is checked for repeated pages."""
_CHUNK = 1_000
"""The files of a listing that are processed together: a page of S3."""
_LONGEST_LISTING = 300.0
"""Seconds in which a store can list millions of files of one folder."""
_LEFT_ASKING: set[str] = set()
"""Folders that a library was asked for and still lists, as far as this process knows."""


class Bucket(Store):
    """A part of a bucket; `options` are used instead of those given to `introduce`."""

    asks_for_free = False
    connection: Any
    """The connection to the whole bucket, shared by all its parts."""

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        self.address = address.rstrip("/")
        self._options = dict(options_of(self.address) if options is None else options)
        parts = urlsplit(self.address)
        self._prefix = parts.path.strip("/")
        # Google identifies versions by a number, the other stores by a hash.
        self._version_field: Literal["version", "e_tag"] = (
            "version" if parts.scheme == "gs" else "e_tag"
        )
        self.connection = connected(
            parts.scheme, parts.netloc, tuple(sorted(self._options.items()))
        )

    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file and return its version; None if the name is taken."""
        while True:
            with self._request("create"):
                try:
                    return self._put(name, data, "create")
                except (AlreadyExistsError, PreconditionError):
                    pass
            # The first attempt may have succeeded, and its answer been lost.
            try:
                return self._version_if_equal(name, data)
            except FileNotFoundError:
                # Another process was about to create the file, and did not.
                continue

    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        """Create or replace a file and return its version."""
        with self._request("write"):
            return self._put(name, data, "overwrite")

    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Replace a file if its version is `unchanged`; return the new version, or None."""
        with self._request("swap"):
            try:
                return self._put(name, data, {self._version_field: unchanged})
            except (PreconditionError, AlreadyExistsError, FileNotFoundError):
                pass
        try:
            return self._version_if_equal(name, data)
        except FileNotFoundError:
            return None

    def fetch(self, name: str) -> tuple[bytes, str]:
        """Read a file whole; return its content and version. Raises FileNotFoundError."""
        with self._request("read"):
            answer = obstore.get(self.connection, self.key(name))
            return bytes(answer.bytes()), self._version(answer.meta)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read a part of a file; the result is shorter where the file ends."""
        with self._request("read"):
            return bytes(
                obstore.get_range(self.connection, self.key(name), start=start, length=length)
            )

    def look(self, name: str) -> Info | None:
        """Return size, time and version of a file; None if it does not exist."""
        with self._request("look"):
            try:
                return self._info(obstore.head(self.connection, self.key(name)))
            except (FileNotFoundError, ValueError):
                return None

    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """List the files of a folder; if `recursive`, also below it. A bucket has no drafts."""
        key = self.key(folder)
        with self._request("list"):
            if after:
                infos = self._listed(key, offset=f"{key}/{after}")
                # Not every store begins at the offset.
                split = ((info, info.name.rpartition("/")) for info in infos)
                return [info for info, name in split if name[0] == folder and name[2] > after]
            if recursive:
                return self._listed(key)
            return [self._info(meta) for meta in self._in_folder(key)["objects"]]

    def folders(self, folder: str = "") -> list[str]:
        """List the names of the folders in a folder."""
        with self._request("list"):
            listed = self._in_folder(self.key(folder))
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"])

    def exists(self, folder: str = "") -> bool:
        """Return whether the store, or a folder in it, exists."""
        with self._request("list"):
            # The first page is enough: a log of months has hundreds of pages, each a request.
            return bool(self._listed(self.key(folder), first_page=True))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._request("remove"):
            try:
                obstore.delete(self.connection, self.key(name))
            except FileNotFoundError:
                return

    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder with all its content, if it exists."""
        self.remove_files([info.name for info in self.files(folder, recursive=True)])

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove the files that exist, with one request for many."""
        if len(names) == 1:
            # Not every store has a request for many files.
            self.remove(names[0])
        elif names:
            with self._request("remove"):
                obstore.delete(self.connection, [self.key(name) for name in names])

    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file; within one bucket, the store itself copies it."""
        if isinstance(to, Bucket) and to.connection is self.connection:
            with self._request("copy"):
                obstore.copy(self.connection, self.key(name), to.key(named or name))
        else:
            to.write(named or name, self.read(name))

    def open(
        self, name: str, *, ahead: int = 1024 * 1024, size: int | None = None
    ) -> pa.NativeFile:
        """Open a file for reading in parts of `ahead` bytes; a small file is read at once."""
        total = self.size(name) if size is None else size
        if total is None:
            raise FileNotFoundError(f"{self.address}/{name}")
        if total <= ahead:
            return pa.BufferReader(self.read(name))
        return pa.PythonFile(io.BufferedReader(_Ranges(self, name, total), ahead), mode="r")

    def listed_by(self, library: Callable[[], T], folder: str = "") -> T:
        """Return what a library answers that lists a folder by itself.

        Such a library follows a listing without an end for ever, and cannot be stopped. When it
        takes long, the same listing is read here, and its pages are checked. A folder that a
        library did not come back from is checked before it is asked again.
        """
        key = self.key(folder)
        place = f"{self.address}/{folder}"
        if place in _LEFT_ASKING:
            self._check_end(key)
        answer = begun(library, name="distributary-library")
        try:
            return answer.result(timeout=_LONG_LISTING)
        except TimeoutError:
            if answer.done():
                return answer.result()
        _LEFT_ASKING.add(place)
        self._check_end(key)
        try:
            result = answer.result(timeout=_LONGEST_LISTING)
        except TimeoutError:
            raise OSError(
                f"the listing of {place} has no end after {_LONGEST_LISTING:g} seconds"
            ) from None
        _LEFT_ASKING.discard(place)
        return result

    def _check_end(self, key: str) -> None:
        """Follow a listing to its end. Raises OSError for an endless listing."""
        with self._request("list"):
            self._ended(lambda: self._look_for_repeats(key))

    def _listed(
        self, key: str, *, offset: str | None = None, first_page: bool = False
    ) -> list[Info]:
        """List the files below a key. Raises OSError for an endless listing."""

        async def collect() -> list[Info]:
            files: list[Info] = []
            # The library follows pages of the store until it has the files of a chunk.
            size = 1 if first_page else _CHUNK
            async for page in self._pages(key, offset=offset, size=size):
                files += map(self._info, page)
                if first_page:
                    break
            return files

        return self._ended(collect)

    async def _pages(
        self, key: str, *, offset: str | None = None, size: int = _CHUNK
    ) -> AsyncIterator[Sequence[Any]]:
        """Yield the files of a listing in chunks of `size`.

        A server may return the same page again, with a token to continue: without a check, that
        listing would be followed until memory ends. A server may also return empty pages for ever,
        which the library follows by itself: each chunk has a timeout.
        """
        import asyncio

        beginnings: set[str] = set()
        chunks = obstore.list(self.connection, key or None, offset=offset, chunk_size=size)
        listing = aiter(chunks)
        while True:
            try:
                async with asyncio.timeout(_LONGEST_LISTING):
                    page = await anext(listing)
            except StopAsyncIteration:
                return
            _refuse_repeated(page, beginnings)
            yield page

    def _in_folder(self, key: str) -> Any:
        """List the files and folders in a key. Raises OSError for an endless listing."""
        return self._ended(lambda: self._bounded(key))

    def _ended(self, listing_of: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the end of a listing. Raises OSError if it takes too long."""
        # Commands that list no folder of a bucket start faster without asyncio.
        import asyncio

        # Runs in a new thread, because the caller's thread may run an event loop already.
        listing = begun(lambda: asyncio.run(listing_of()), name="distributary-list")
        try:
            return listing.result()
        except TimeoutError:
            raise OSError(
                f"the listing of {self.address} has no end after {_LONGEST_LISTING:g} seconds"
            ) from None

    async def _bounded(self, key: str) -> Any:
        """List a key, and stop if the pages below it turn out to repeat.

        The library follows the pages of a folder by itself, and returns none before the last. So
        the pages of the recursive listing are checked beside it.
        """
        import asyncio

        async with asyncio.timeout(_LONGEST_LISTING):
            listing = obstore.list_with_delimiter_async(self.connection, key or None)
            whole = asyncio.ensure_future(listing)
            look: asyncio.Task[None] | None = None
            try:
                await asyncio.wait([whole], timeout=_LONG_LISTING)
                if not whole.done():
                    look = asyncio.create_task(self._look_for_repeats(key))
                    await asyncio.wait([whole, look], return_when=asyncio.FIRST_COMPLETED)
                    if look.done() and not whole.done():
                        look.result()
                return await whole
            finally:
                whole.cancel()
                if look is not None:
                    look.cancel()
                    # takes what it raised: an error that is never taken is reported at exit
                    await asyncio.gather(look, return_exceptions=True)

    async def _look_for_repeats(self, key: str) -> None:
        async for _ in self._pages(key):
            pass

    def _put(self, name: str, data: bytes, mode: Any) -> str:
        # One request, however large: several cost more, and not all stores make them conditional.
        done = obstore.put(self.connection, self.key(name), data, mode=mode, use_multipart=False)
        return self._version(done)

    def _version_if_equal(self, name: str, data: bytes) -> str | None:
        """Return the version of a file if it has these bytes, otherwise None."""
        content, version = self.fetch(name)
        return version if content == data else None

    def _info(self, meta: Any) -> Info:
        cut = len(self._prefix) + 1 if self._prefix else 0
        modified = meta["last_modified"].timestamp()
        return Info(meta["path"][cut:], meta["size"], modified, self._version(meta))

    def _version(self, meta: Any) -> str:
        # Google's listings only have the hash, and Azure's leave its quotes out.
        version = str(meta[self._version_field] or meta["e_tag"])
        return version if self._version_field == "version" or '"' in version else f'"{version}"'

    def key(self, name: str) -> str:
        """Return the key of a file in the bucket."""
        return "/".join(part for part in (self._prefix, name) if part)

    @contextmanager
    def _request(self, kind: str) -> Iterator[None]:
        """Count a request, and turn the store's errors into OSError without secrets."""
        REQUESTS[kind] += 1
        try:
            yield
        except (FileNotFoundError, ValueError) as error:
            # Includes names that a bucket may have and the library cannot spell, such as `a//b`.
            raise FileNotFoundError(self._words(error)) from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(self._words(error)) from None
        except BaseError as error:
            raise OSError(self._words(error)) from None

    def _words(self, error: Exception) -> str:
        return hidden(str(error).partition("\n")[0], self._options)


def _refuse_repeated(page: Sequence[Any], beginnings: set[str]) -> None:
    """Raise OSError for a page whose first key began an earlier page."""
    if page:
        path = page[0]["path"]
        if path in beginnings:
            raise OSError(
                f"the listing does not end: it repeats the page that begins with {path[:200]}"
            )
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
    """Return the connection of a process to a bucket; options have the names of `deltalake`."""
    settings = {name.lower(): value for name, value in options}
    bucket, _, account = host.rpartition("@") if "@" in host else (host, "", "")
    kind: Any
    match scheme:
        case "s3" | "s3a":
            kind = S3Store
            endpoint = next((settings[name] for name in _S3_ENDPOINTS if settings.get(name)), "")
            if endpoint and not any("region" in name for name in settings):
                # a self-hosted server has no regions
                settings["aws_region"] = "us-east-1"
        case "gs":
            kind, endpoint = GCSStore, ""
        case "abfs" | "abfss" | "az" | "azure" | "adl":
            kind = AzureStore
            endpoint = settings.get("azure_storage_endpoint", settings.get("azure_endpoint", ""))
            if account and not {"azure_storage_account_name", "account_name"} & settings.keys():
                settings["azure_storage_account_name"] = account.partition(".")[0]
        case _:
            raise ConfigError(
                f"{scheme}:// is not an object store that is supported",
                evidence=f"{scheme}://{host}",
                next_step="use s3://, gs:// or abfss://, or a local folder",
            )
    # The library takes all other settings from the environment.
    allowed = any(
        settings.pop(name, os.environ.get(name.upper(), "")).lower() == "true"
        for name in _ALLOW_HTTP
    )
    client = {"allow_http": True} if allowed or endpoint.startswith("http://") else {}
    while True:
        try:
            return kind(bucket, config=settings, client_options=client, retry_config=_RETRIES)
        except UnknownConfigurationKeyError as error:
            # The setting belongs to another library, which gets the same options.
            name = re.search(r"'([^']*)'", str(error))
            if name is None or settings.pop(name[1], None) is None:
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
