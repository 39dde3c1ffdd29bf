"""The Python packages of this environment as one file for Spark's executors.

The archive holds the packages that Distributary needs, without PySpark, which every Spark has
itself, and a `bin/python` that starts the worker's own Python of the same version with these
packages. The archive works in any folder, unlike a copied virtual environment, which contains
absolute paths. A run on a cluster packs it once, and Spark sends it to each machine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import struct
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from typing import IO, cast

import platformdirs

from distributary.errors import DeployError
from distributary.store import disk

PYTHON_IN_ARCHIVE = "bin/python"
COMPRESSION = 1
"""The level of compression: most of the content is machine code, for which more takes minutes."""
UNPACKED = "environment"
"""The folder, in an executor's working directory, into which Spark unpacks the archive."""
PYTHON_OF_WORKERS = f"./{UNPACKED}/{PYTHON_IN_ARCHIVE}"
_OWN = Path(__file__).parents[1]
"""The folder of Distributary's own package."""
_PACKAGES = "lib"
_KEPT_SECONDS = 30 * 24 * 3600.0
"""How long an unused archive stays in the user's cache."""
# the header of a compiled module: its length, the range of its numbers, and the flag of a module
# that is identified by a hash of its source and is not compared with it
_HEADER, _32, _BELIEVED = 16, 0xFFFFFFFF, 0b01
# the executors' Spark has its own copy, which must fit its JVM
_LEFT_OUT = frozenset({"pyspark", "py4j", "distributary"})
_TESTS = "tests"
_ORIGIN = "direct_url.json"
"""The file with the address from which a package was installed; it may contain a token."""
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra == [\"']([^\"']+)")
_WRAPPER = """\
#!/bin/sh
# the worker's own Python of the same version, with the packages beside this file
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec "${{DISTRIBUTARY_PYTHON:-python{version}}}" "$@"
"""

_Needed = tuple[str, str]
"""A package and one of its extras, or an empty text."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A written archive."""

    path: Path
    packages: tuple[str, ...]
    files: int
    bytes: int
    """The size of the archive."""


def contents() -> dict[str, Path]:
    """Return names in the archive with the files that they come from; each name is there once."""
    files = {f"{_PACKAGES}/distributary/{name}": path for name, path in own_files(_OWN)}
    for name in packages():
        for inside, path in files_of(distribution(name)):
            files.setdefault(f"{_PACKAGES}/{inside}", path)
    return dict(sorted(files.items()))


def packages() -> tuple[str, ...]:
    """Return the names of all packages that Distributary needs, directly or not, except PySpark."""
    seen, waiting = set[_Needed](), [("distributary", "")]
    while waiting:
        for needed in _requirements(*waiting.pop()):
            if needed not in seen and needed[0] not in _LEFT_OUT:
                seen.add(needed)
                waiting.append(needed)
    return tuple(sorted({name for name, _ in seen}))


def pack(path: Path) -> Packed:
    """Write the archive; the same environment gives the same bytes."""
    files = contents()
    _write_archive(path, files)
    return Packed(path, packages(), len(files), path.stat().st_size)


def _write_archive(path: Path, files: Mapping[str, Path]) -> None:
    with (
        replacing(path) as file,
        gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as smaller,
    ):
        _write(cast(IO[bytes], smaller), files)


def ensure_archive(progress: Callable[[str], None] | None = None) -> Path:
    """Return the archive of this environment; pack it into the user's cache if it is not there."""
    files = contents()
    folder = platformdirs.user_cache_path("distributary") / "environments"
    path = folder / f"{_key(files)}.tar.gz"
    try:
        # the time of the last use
        os.utime(path)
    except OSError:
        if progress is not None:
            progress("packing the Python packages for the cluster (once, a minute)")
        _write_archive(path, files)
    _remove_unused(folder, time.time() - _KEPT_SECONDS)
    return path


def _key(files: Mapping[str, Path]) -> str:
    """Return a hash that changes with the environment; reading all files would take seconds."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name, path in files.items():
        stat = path.stat()
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _remove_unused(folder: Path, before: float) -> None:
    for path in folder.glob("*.tar.gz"):
        # another process may have removed it
        with suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces another one when it is complete.

    DeployError if that is impossible.
    """
    drafts = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        drafts.parent.mkdir(parents=True, exist_ok=True)
        with drafts.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        drafts.replace(path)
        disk.sync(path.parent)
    except OSError as error:
        raise DeployError(
            "the archive cannot be written",
            where=str(path),
            evidence=f"{type(error).__name__}: {error.strerror}",
            next_step="check permissions and free space (about 200 MB), or name another path",
        ) from error
    finally:
        drafts.unlink(missing_ok=True)


def _write(file: IO[bytes], found: Mapping[str, Path]) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wrapper = _WRAPPER.format(packages=_PACKAGES, version=version).encode()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(_entry(PYTHON_IN_ARCHIVE, len(wrapper), 0o755), io.BytesIO(wrapper))
        for name, source in found.items():
            content = source.read_bytes()
            archive.addfile(_entry(name, len(content), 0o644), io.BytesIO(content))
            if name.endswith(".py") and (code := _compiled(source, content)) is not None:
                where = cache_from_source(name)
                archive.addfile(_entry(where, len(code), 0o644), io.BytesIO(code))


def _compiled(source: Path, content: bytes) -> bytes | None:
    """Return the compiled module, marked as valid whatever the file's time.

    Without it, each executor would compile everything that it imports.
    """
    try:
        code = Path(cache_from_source(str(source))).read_bytes()
    except OSError:
        return None
    stat = source.stat()
    expected = struct.pack("<4sIII", MAGIC_NUMBER, 0, int(stat.st_mtime) & _32, stat.st_size & _32)
    if code[:_HEADER] != expected:
        return None
    return struct.pack("<4sI8s", MAGIC_NUMBER, _BELIEVED, source_hash(content)) + code[_HEADER:]


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, mode, 0
    return entry


def own_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield Distributary's own files by their names below its package."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_file() and not hidden:
            yield inside.as_posix(), path


def files_of(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of an installed package by their names below the folder of all packages."""
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        # scripts are outside of the packages, and executors do not need them
        left_out = {"..", "__pycache__", _TESTS, _ORIGIN} & set(file.parts)
        if not left_out and not file.is_absolute() and path.is_file():
            yield file.as_posix(), path


def _requirements(name: str, extra: str) -> Iterator[_Needed]:
    for line in distribution(name).requires or ():
        requirement, _, marker = line.partition(";")
        extra_match = _EXTRA.search(marker)
        # a requirement of an extra is listed under that extra only
        if (extra_match[1] if extra_match else "") != extra:
            continue
        needed = _NAME.match(requirement.strip())
        if needed is None or not _is_installed(needed[1]):
            continue
        plain = re.sub(r"[-_.]+", "-", needed[1]).lower()
        for part in ("", *(needed[2] or "").split(",")):
            yield plain, part.strip()


def _is_installed(name: str) -> bool:
    # a marker for another system or Python names packages that are not installed
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
