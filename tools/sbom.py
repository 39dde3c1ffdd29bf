"""The bill of materials of what is shipped, as CycloneDX: `python -m tools.sbom OUT.json`.

It is made of the locks alone, so the same locks give the same bytes: the Python packages of
`deploy/requirements.lock` and the JVM connectors of `spark/jvm/`, for each version of Spark. A
Python package has a checksum for each of its files, of which a machine installs one.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import distributary
from distributary.spark.versions import VERSIONS

_PACKAGE = Path(distributary.__file__).parent
_LOCK = _PACKAGE / "deploy" / "requirements.lock"
_JVM = _PACKAGE / "spark" / "jvm"
_ENTRY = re.compile(r"^([a-z0-9-]+)==([^ ;]+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill() -> dict[str, Any]:
    """The whole document."""
    parts = [*_python_packages(), *_connectors()]
    version = distributary.__version__
    content = json.dumps(parts, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, version + content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "distributary",
                "name": "distributary",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": parts,
    }


def _python_packages() -> Iterator[dict[str, Any]]:
    for name, version, rest in _ENTRY.findall(_LOCK.read_text("ascii")):
        yield _component(f"pkg:pypi/{name}@{version}", name, version, _HASH.findall(rest))


def _connectors() -> Iterator[dict[str, Any]]:
    """Yield each connector once, though several versions of Spark may share it."""
    listed: set[str] = set()
    for minor in VERSIONS:
        lines = (_JVM / minor / "SHA256SUMS").read_text("ascii").splitlines()
        sums = {name: digest for digest, name in map(str.split, lines)}
        lock = ElementTree.parse(_JVM / minor / "ivy.xml")  # noqa: S314 - a file of this package
        for each in lock.iter("dependency"):
            group, name, version = (each.attrib[key] for key in ("org", "name", "rev"))
            purl = f"pkg:maven/{group}/{name}@{version}?type=jar"
            if purl not in listed:
                listed.add(purl)
                digest = sums[f"{name}-{version}.jar"]
                yield {"group": group, **_component(purl, name, version, [digest])}


def _component(purl: str, name: str, version: str, digests: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
    }


def main() -> int:
    """Write the bill where the command line says."""
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    document = bill()
    out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print(f"{out}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
