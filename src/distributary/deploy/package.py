"""This installation as a wheel, and the locked packages that it needs.

A wheel is for an image that must not download Distributary. It contains the imported files, so it
works from a checkout and from an installed wheel, without a build tool and without a network.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
import zipfile
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import distributary
from distributary.errors import DeployError
from distributary.spark.packages import Packed, files_of, own_files, replacing

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


def write_wheel(path: Path, *, without: Collection[str] = ()) -> Packed:
    """Write the wheel; the same installation gives the same bytes."""
    content = wheel(without=without)
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


def packing(folder: Path) -> str:
    """Return the command that writes the wheel into a folder, for a runtime that has PySpark."""
    # the runtime's PySpark is known to no installer, which would add a second one
    return f"distributary package {shlex.quote(str(folder))}/{WHEEL} --without-pyspark"


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
