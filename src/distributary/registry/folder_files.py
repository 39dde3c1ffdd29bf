"""The files of a registry's folder: reading, writing, and the errors of a folder that is unusable.

The doubts about inferred schemas are here, too: `status` shows them without loading the compilers
of schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributary.errors import RegistryUnavailableError
from distributary.model.names import printable
from distributary.store.base import Store, at


@contextmanager
def unreachable(store: Store) -> Iterator[None]:
    """Convert errors of the file system or the bucket to the registry's retryable error."""
    try:
        yield
    except OSError as error:
        what, step = "fails", "check the disk and the permissions of the folder"
        if isinstance(error, FileNotFoundError) and not store.exists():
            what = "does not exist"
            step = "check registry.path, or register a first schema to create the folder"
        raise RegistryUnavailableError(
            f"the registry's folder {what}",
            where=printable(store.address),
            evidence=printable(f"{type(error).__name__}: {error}"),
            next_step=step,
        ) from error


def damaged(store: Store, name: str) -> RegistryUnavailableError:
    """Build the error for a registry file that is not as it was written; no record is at fault."""
    return RegistryUnavailableError(
        "a file of the registry is damaged",
        where=printable(f"{store.address}/{name}"),
        evidence="the registry did not write this: the file was edited, or a merge left marks",
        next_step="restore the file, for example with git checkout",
    )


def read_json(store: Store, name: str) -> dict[str, Any] | None:
    """Read a JSON object, or return None if the file does not exist."""
    try:
        content = json.loads(store.read(name))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise damaged(store, name)
    return content


def create(store: Store, name: str, content: dict[str, Any], *, durable: bool = True) -> bool:
    """Write a new file that never changes; return False if the name is taken."""
    try:
        return store.create(name, encoded(content), durable=durable) is not None
    except OSError:
        # On a file system without links, the lock of the caller keeps other writers out.
        if store.look(name) is not None:
            return False
        store.write(name, encoded(content), durable=durable)
        return True


def encoded(content: dict[str, Any]) -> bytes:
    """Return an object as the content of a file."""
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # half of a surrogate pair is legal in a Python string and as an escape, but not in UTF-8
        return (json.dumps(content, indent=2) + "\n").encode()


# The folder of inferred schemas, and the columns whose kind was decided although several were seen.

DOUBTS = "doubts.json"


def inferred_folder(checkpoint: str) -> str:
    """Return the folder of a checkpoint in which inferred schemas are kept."""
    return f"{checkpoint}/inferred"


def file_schemas_folder(checkpoint: str) -> str:
    """Return the folder of a checkpoint in which schemas are kept that records bring along."""
    return f"{checkpoint}/file-schemas"


def has_inferred(checkpoint: str) -> bool:
    """Return True if a checkpoint has inferred schemas."""
    try:
        return bool(checkpoint) and at(inferred_folder(checkpoint)).exists()
    except OSError:
        return False


def read_doubts(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the columns whose kind was decided although several kinds were seen, by claim."""
    store = at(folder)
    with unreachable(store):
        return read_json(store, DOUBTS) or {}
