"""The registry's own files, and the errors of a folder that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributary import durable as durably
from distributary.errors import RegistryUnavailableError
from distributary.registry.hostile import printable


@contextmanager
def unreachable(root: Path) -> Iterator[None]:
    """Turns what the file system says into the registry's own error: try again, lose nothing."""
    try:
        yield
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not root.exists()
        raise RegistryUnavailableError(
            "the registry's folder does not exist" if missing else "the registry's folder fails",
            where=printable(str(root)),
            evidence=printable(f"{type(error).__name__}: {error}"),
            next_step="check registry.path, or register a first schema to create the folder"
            if missing
            else "check the disk and the permissions of the folder",
        ) from error


def damaged(path: Path) -> RegistryUnavailableError:
    """A file of the registry holds something else than was written: nobody's record is at fault."""
    return RegistryUnavailableError(
        "a file of the registry is damaged",
        where=printable(str(path)),
        evidence="it is not what the registry writes: edited by hand, or a merge left its marks",
        next_step="restore the file, for example with git checkout",
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when there is no such file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        raise damaged(path) from None
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def ensure_folder(path: Path, *, durable: bool = True) -> None:
    """Make a folder in an existing one, unless it is there."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    if durable:
        durably.sync(path.parent)


def create(path: Path, content: dict[str, Any], *, durable: bool = True) -> bool:
    """Write a new file that never changes; False when the name is taken."""
    try:
        return durably.create(path, _encoded(content), durable=durable) is not None
    except OSError:
        # a file system without links: the caller's lock is what keeps others out here
        if path.exists():
            return False
        replace_file(path, content, durable=durable)
        return True


def replace_file(path: Path, content: dict[str, Any] | bytes, *, durable: bool = True) -> None:
    """Write a file, or put another in its place, in one step."""
    data = content if isinstance(content, bytes) else _encoded(content)
    durably.replace(path, data, durable=durable)


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: legal in a Python string and as an escape, not as UTF-8
        return (json.dumps(content, indent=2) + "\n").encode()
