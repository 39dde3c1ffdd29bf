"""Files that appear whole or not at all, and the errors of a folder that cannot be used."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
        _sync_folder(path.parent)


def create(path: Path, content: dict[str, Any], *, durable: bool = True) -> bool:
    """Write a new file that never changes; False when the name is taken."""
    with _prepared(path, _encoded(content), durable=durable) as ready:
        try:
            os.link(ready, path)
        except FileExistsError:
            return False
        except OSError:
            # a file system without links: the caller's lock is what keeps others out here
            if path.exists():
                return False
            os.replace(ready, path)
    if durable:
        _sync_folder(path.parent)
    return True


def replace_file(path: Path, content: dict[str, Any] | bytes, *, durable: bool = True) -> None:
    """Write a file, or put another in its place, in one step."""
    data = content if isinstance(content, bytes) else _encoded(content)
    with _prepared(path, data, durable=durable) as ready:
        os.replace(ready, path)
    if durable:
        _sync_folder(path.parent)


@contextmanager
def _prepared(path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    ready = path.with_name(f".new-{secrets.token_hex(8)}")
    try:
        with ready.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield ready
    finally:
        ready.unlink(missing_ok=True)


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # half of a surrogate pair: legal in a Python string and as an escape, not as UTF-8
        return (json.dumps(content, indent=2) + "\n").encode()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
