"""The Python packages of this environment as one file for Spark's executors.

The archive holds the packages that Distributary needs, without PySpark, which every Spark has
itself, and a `bin/python` that starts the worker's own Python of the same version with these
packages. The archive works in any folder, unlike a copied virtual environment, which contains
absolute paths.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import re
import struct
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER, cache_from_source, find_spec, source_hash
from pathlib import Path
from typing import IO, cast

import distributary
from distributary.errors import DeployError
from distributary.store import disk

PYTHON_IN_ARCHIVE = "bin/python"
COMPRESSION = 1
"""The level of compression: most of the content is machine code, for which more takes minutes."""
_PACKAGES = "lib"
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
    root = Path(distributary.__file__).parent
    files = {f"{_PACKAGES}/distributary/{name}": path for name, path in own_files(root)}
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
    with (
        replacing(path) as file,
        gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as smaller,
    ):
        _write(cast(IO[bytes], smaller), files)
    return Packed(path, packages(), len(files), path.stat().st_size)


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


def _write(file: IO[bytes], found: dict[str, Path]) -> None:
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


# This installation as a wheel, for an image that must not download Distributary. It contains the
# imported files, so it works from a checkout and from an installed wheel, without a build tool and
# without a network.

WHEEL = f"distributary-{distributary.__version__}-py3-none-any.whl"
"""The only file name that pip accepts."""

_WHEEL_NAME = "distributary"
# the other files there contain data of this machine
_KEPT = frozenset({"METADATA", "WHEEL", "entry_points.txt"})
_LICENSES = "licenses"


def wheel_contents() -> dict[str, Path]:
    """Return names in the wheel with the files that they come from."""
    installed = _installed()
    files = {
        f"{package}/{name}": path
        for package, root in _own_packages(installed)
        for name, path in own_files(root)
    }
    for name, path in files_of(installed):
        folder, _, rest = name.partition("/")
        described = folder.endswith(".dist-info") and (
            rest in _KEPT or rest.startswith(f"{_LICENSES}/")
        )
        # for a checkout, the package's data is elsewhere
        if described or folder == _WHEEL_NAME:
            files.setdefault(name, path)
    return dict(sorted(files.items()))


def _own_packages(installed: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the packages with the program and its commands: entry points name modules of each."""
    for package in sorted({point.module.partition(".")[0] for point in installed.entry_points}):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            yield package, Path(spec.origin).parent


def write_wheel(path: Path) -> Packed:
    """Write the wheel; the same installation gives the same bytes."""
    content = wheel()
    with replacing(path) as file:
        file.write(content)
    return Packed(path, (_WHEEL_NAME,), len(wheel_contents()), len(content))


def wheel(*, without: Collection[str] = ()) -> bytes:
    """Return the wheel's bytes; `without` are packages that it does not require."""
    files = wheel_contents()
    (folder,) = {name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA")}
    record = f"{folder}/RECORD"
    rows: list[str] = []
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in files.items():
            content = source.read_bytes()
            if name == f"{folder}/METADATA" and without:
                content = _asking_for_less(content, without)
            archive.writestr(_wheel_entry(name), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(content)}\n")
        archive.writestr(_wheel_entry(record), "".join([*rows, f"{record},,\n"]))
    return made.getvalue()


def _asking_for_less(metadata: bytes, without: Collection[str]) -> bytes:
    requirements = (f"Requires-Dist: {name}" for name in without)
    names = re.compile(rf"(?:{'|'.join(map(re.escape, requirements))})(?![A-Za-z0-9._-])")
    lines = metadata.decode().splitlines(keepends=True)
    return "".join(line for line in lines if not names.match(line)).encode()


RUNTIMES_OWN = ("pyspark", "py4j")
"""The packages that a runtime such as Databricks' has itself, and must not get a second time."""


def locked(*, without: Collection[str] = RUNTIMES_OWN) -> str:
    """Return the packages that Distributary needs, each file with its SHA-256, for pip."""
    text = Path(__file__).with_name("requirements.lock").read_text("utf-8")
    # an entry is a line with a name, and the lines of its checksums that follow
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    return "".join(
        entry for entry in entries if re.split(r"[=\[ ;]", entry, maxsplit=1)[0] not in without
    )


def _wheel_entry(name: str) -> zipfile.ZipInfo:
    # the same time and permissions for every entry
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o100644 << 16
    return entry


def _installed() -> Distribution:
    try:
        package = distribution(_WHEEL_NAME)
    except PackageNotFoundError:
        package = None
    if package is None or package.version != distributary.__version__:
        raise DeployError(
            "the metadata of this installation is missing or of another version",
            where=str(Path(distributary.__file__).parent),
            evidence=f"runs {distributary.__version__}, installed "
            f"{package.version if package else 'nothing'}",
            next_step="install it again: make install in a checkout, else pip install",
        )
    return package
