"""What a process knows of object stores: for each address, how to log in.

Tables are named by their addresses everywhere; to carry credentials beside each of them would put
secrets into manifests, events and errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pa_fs

from distributary.errors import OutsideLakeError
from distributary.stores.arrow import arrow_file_system

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
