"""This installation as a wheel, for an image that must not ask an index for Distributary.

It holds the files that are imported here, so it works alike from a checkout and from a wheel that
was installed, without a build tool and without a network.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import distributary
from distributary.deploy.package import Packed, files_of, own_files, replacing
from distributary.errors import DeployError

WHEEL = f"distributary-{distributary.__version__}-py3-none-any.whl"
"""The only name under which pip takes it."""

_NAME = "distributary"
# the rest of what lies there tells of this machine
_KEPT = frozenset({"METADATA", "WHEEL", "entry_points.txt"})
_LICENSES = "licenses"


def wheel_contents() -> dict[str, Path]:
    """Names in the wheel and the files they come from."""
    found = {f"{_NAME}/{name}": path for name, path in own_files()}
    for name, path in files_of(_installed()):
        folder, _, rest = name.partition("/")
        described = folder.endswith(".dist-info") and (
            rest in _KEPT or rest.startswith(f"{_LICENSES}/")
        )
        # beside a checkout, the package's data from elsewhere
        if described or folder == _NAME:
            found.setdefault(name, path)
    return dict(sorted(found.items()))


def write_wheel(path: Path) -> Packed:
    """Write the wheel; the same installation gives the same bytes."""
    found = wheel_contents()
    (folder,) = {name.partition("/")[0] for name in found if name.endswith(".dist-info/METADATA")}
    record = f"{folder}/RECORD"
    rows: list[str] = []
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in found.items():
            content = source.read_bytes()
            archive.writestr(_entry(name), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(content)}\n")
        archive.writestr(_entry(record), "".join([*rows, f"{record},,\n"]))
    return Packed(path, (_NAME,), len(found), path.stat().st_size)


def _entry(name: str) -> zipfile.ZipInfo:
    # always the same time and rights
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o100644 << 16
    return entry


def _installed() -> Distribution:
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        found = None
    if found is None or found.version != distributary.__version__:
        raise DeployError(
            "the metadata of this installation is missing or of another version",
            where=str(Path(distributary.__file__).parent),
            evidence=f"runs {distributary.__version__}, installed "
            f"{found.version if found else 'nothing'}",
            next_step="install it again: make install in a checkout, else pip install",
        )
    return found
