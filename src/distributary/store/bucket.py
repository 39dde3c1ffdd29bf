"""What a process knows of object stores: for each address, how to log in.

Tables are named by their addresses everywhere; to carry credentials beside each of them would put
secrets into manifests, events and errors.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.fs as pafs

from distributary.errors import ConfigError, LakeUnavailableError, OutsideLakeError, clean
from distributary.store.disk import sync

# The settings of an object store, by the names that `deltalake` knows, in Arrow's words.

_S3 = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
}
_S3_ENDPOINT = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint")
_S3_ANONYMOUS = ("aws_skip_signature", "skip_signature")
_S3_VIRTUAL = ("aws_virtual_hosted_style_request", "virtual_hosted_style_request")
_GCS_CREDENTIALS = (
    "google_service_account",
    "google_service_account_path",
    "service_account_path",
    "service_account",
    "google_application_credentials",
    "application_credentials",
)
_GCS_KEY = ("google_service_account_key", "service_account_key")
_GCS_ANONYMOUS = ("google_skip_signature", "skip_signature")
_AZURE_ACCOUNT = ("azure_storage_account_name", "account_name")
_AZURE = {
    "account_key": (
        "azure_storage_account_key",
        "azure_storage_access_key",
        "account_key",
        "access_key",
    ),
    "sas_token": ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": ("azure_storage_tenant_id", "azure_tenant_id", "tenant_id", "authority_id"),
}
_TRUE = ("true", "1", "yes", "on", "t", "y")


def arrow_file_system(
    address: str, options: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[Any, str]:
    """Arrow's file system for an address, and the path of the address in it."""
    parts = urlsplit(address)
    known = _Known(options, environ)
    inside = parts.path.strip("/")
    bucket = parts.netloc
    match parts.scheme:
        case "s3" | "s3a":
            system = pa_fs.S3FileSystem(**s3_arguments(known))
        case "gs":
            system = pa_fs.GcsFileSystem(anonymous=_gcs_anonymous(known))
        case "abfs" | "abfss" | "az" | "azure" | "adl":
            bucket, _, host = bucket.rpartition("@") if "@" in bucket else (bucket, "", "")
            system = pa_fs.AzureFileSystem(**azure_arguments(known, host))
        case scheme:
            raise ConfigError(
                f"no object store has addresses with {scheme}://",
                evidence=address,
                next_step="s3://, gs:// and abfss:// are known, and folders",
            )
    return system, f"{bucket}/{inside}" if inside else bucket


class _Known:
    """Settings by name, in any case; what the pipeline file says comes before the environment."""

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._environ = environ

    def __call__(self, names: tuple[str, ...]) -> str | None:
        for name in names:
            if self._options.get(name):
                return self._options[name]
        return next((self._environ[n.upper()] for n in names if self._environ.get(n.upper())), None)

    def flag(self, names: tuple[str, ...]) -> bool:
        return (self(names) or "").lower() in _TRUE


def s3_arguments(known: _Known) -> dict[str, Any]:
    """What Arrow's S3 file system is told."""
    given: dict[str, Any] = {argument: known(names) for argument, names in _S3.items()}
    if known.flag(_S3_ANONYMOUS):
        given["anonymous"] = True
    if known.flag(_S3_VIRTUAL):
        given["force_virtual_addressing"] = True
    endpoint = known(_S3_ENDPOINT)
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        given |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
        # a server of one's own has no regions, and Arrow would ask Amazon for the bucket's
        given["region"] = given["region"] or "us-east-1"
    return {name: value for name, value in given.items() if value is not None}


def azure_arguments(known: _Known, host: str) -> dict[str, Any]:
    """What Arrow's Azure file system is told."""
    account = known(_AZURE_ACCOUNT) or host.partition(".")[0]
    if not account:
        raise ConfigError(
            "the address of the container does not name its account",
            where="source.bucket",
            next_step="write abfss://<container>@<account>.dfs.core.windows.net, or set "
            "azure_storage_account_name in source.storage_options",
        )
    given = {argument: known(names) for argument, names in _AZURE.items()}
    return {"account_name": account} | {name: v for name, v in given.items() if v is not None}


def _gcs_anonymous(known: _Known) -> bool:
    if known(_GCS_KEY):
        raise ConfigError(
            "the key of a Google service account can be given as a file only",
            where="source.storage_options",
            next_step="put the key into a file, and its path into google_service_account_path",
        )
    credentials = known(_GCS_CREDENTIALS)
    if credentials:
        # the only way to tell Google's library
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = credentials
    return known.flag(_GCS_ANONYMOUS)


_OPTIONS: dict[str, dict[str, str]] = {}
_SHORT = 3


def introduce(address: str, options: Mapping[str, str]) -> None:
    """From now on, whatever lies below an address is reached with these settings."""
    if is_remote(address):
        _OPTIONS[address.rstrip("/")] = dict(options)


def is_remote(address: str) -> bool:
    """Whether it is on an object store, not on a file system of this machine."""
    return local_folder(address) is None


def file_system(address: str) -> tuple[Any, str]:
    """Arrow's file system for an address, and the path of the address in it."""
    local = local_folder(address)
    if local is not None:
        return pa_fs.LocalFileSystem(), local
    parts = urlsplit(address)
    system, bucket = connected(f"{parts.scheme}://{parts.netloc}", _options(address))
    inside = parts.path.strip("/")
    return system, f"{bucket}/{inside}" if inside else bucket


def without_secrets(text: str, address: str) -> str:
    """Words of a store without anything that it was told in confidence."""
    return hidden(text, dict(_options(address)))


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Words without the values of these settings."""
    for value in options.values():
        text = text.replace(value, "***") if len(value) > _SHORT else text
    return text


def local_folder(path: str) -> str | None:
    """The folder on this machine that an address means, or None if it is elsewhere."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    if scheme is None:
        return path.rstrip("/") or "/"
    if scheme.group(1).lower() != "file":
        return None
    return unquote(re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE)).rstrip("/")


def leads_outside(folder: str, path: str) -> bool:
    """Whether words or links take a path out of a folder; never true of an object store."""
    root, found = local_folder(folder), local_folder(path)
    if root is None or found is None:
        return False
    home = os.path.realpath(root)
    return os.path.commonpath([home, os.path.realpath(found)]) != home


def stay_inside(folder: str, *paths: str) -> None:
    """OutsideLakeError for a path of a lake, or of one of its tables, that leads out of it."""
    for path in paths:
        if leads_outside(folder, path):
            raise OutsideLakeError(
                "a path or a link in the lake leads out of it",
                where=path,
                evidence=f"it is {os.path.realpath(local_folder(path) or path)}",
                next_step="find out who made it; where another disk is to hold a part of the lake, "
                "mount it there",
            )


def _options(address: str) -> tuple[tuple[str, str], ...]:
    known = [place for place in _OPTIONS if f"{address}/".startswith(f"{place}/")]
    return tuple(sorted(_OPTIONS[max(known, key=len)].items())) if known else ()


@lru_cache(maxsize=8)
def connected(address: str, options: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """One connection for all files of a process."""
    return arrow_file_system(address, dict(options), os.environ)


# Files on their way to an object store: many at once, because each of them mostly waits.

_THREADS = 16
_MOST_WAITING = 64
"""Files held in memory until they are there."""


class UploadError(OSError):
    """A file that the store did not take; the words begin with its address."""


class Uploads:
    """Those of one task; nobody may be told of a file before `finish`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def put(self, address: str, content: pa.Buffer) -> None:
        """Begin to write a whole file. Raises what an earlier one has failed with."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._waiting.append(self._pool.submit(_put, address, content))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all of them are there."""
        while self._waiting:
            self._waiting.popleft().result()

    def forget(self) -> None:
        """What a task that failed has left is not the next one's; none is on its way after this."""
        wait([one for one in self._waiting if not one.cancel()])
        self._waiting.clear()


def _put(address: str, content: pa.Buffer) -> None:
    try:
        system, path = file_system(address)
        with system.open_output_stream(path) as stream:
            stream.write(content)
    except OSError as error:
        words = without_secrets(str(error), address).partition("\n")[0]
        raise UploadError(f"{address}: {words}") from None


# A folder on any file system that Arrow knows, and files in it that are whole or not there.


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
