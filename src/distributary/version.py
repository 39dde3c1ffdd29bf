"""What is installed here, for `--version` and bug reports; no JVM is started."""

from __future__ import annotations

import importlib.metadata
import platform
import xml.etree.ElementTree as ElementTree

from distributary import __version__
from distributary.spark.jars import JVM
from distributary.spark.java import find_java


def versions() -> dict[str, str]:
    """Each part and its version; `missing` for what is not there."""
    java = find_java()
    return {
        "distributary": __version__,
        "Python": platform.python_version(),
        "Java": java.version if java else "missing",
        "Spark": _installed("pyspark"),
        "Delta": _locked("delta-spark_"),
        "deltalake": _installed("deltalake"),
        "pyarrow": _installed("pyarrow"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _locked(prefix: str) -> str:
    lock = ElementTree.parse(JVM / "ivy.xml")  # noqa: S314 - a file of this package
    found = (d for d in lock.iter("dependency") if d.get("name", "").startswith(prefix))
    return next(found).get("rev", "missing")
