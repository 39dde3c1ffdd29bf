"""Everything that is shipped, built or tested is named with its checksums."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from distributary.spark.versions import VERSIONS, is_supported

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "distributary"
LOCK = SOURCE / "deploy" / "requirements.lock"
BUILD_LOCK = SOURCE / "deploy" / "build.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
EDITABLE_LOCK = ROOT / "tools" / "editable.lock"
INSTALLER_LOCK = ROOT / "tools" / "installer.lock"
SPARK_LOCKS = sorted((ROOT / "tests" / "spark" / "locks").glob("*.lock"))
LOCKS = pytest.mark.parametrize(
    "path",
    [LOCK, BUILD_LOCK, DEV_LOCK, EDITABLE_LOCK, INSTALLER_LOCK, *SPARK_LOCKS],
    ids=lambda p: p.name,
)
JVM_LOCKS = pytest.mark.parametrize(
    "folder",
    [
        *(SOURCE / "spark/jvm" / minor for minor in VERSIONS),
        SOURCE.parent / "distributary_lab/services/jvm",
        *(ROOT / "tests/services/jvm_connect", ROOT / "tests/services/jvm_iceberg"),
    ],
    ids=lambda folder: folder.name,
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ENTRY = re.compile(r"([a-z0-9-]+)==([0-9a-z.]+)(?: ; [^\n]+?)?((?: --hash=sha256:[0-9a-f]{64})+)")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(requirements: list[str]) -> set[str]:
    return {plain(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in requirements}


def entries(path: Path) -> dict[str, set[str]]:
    """Versions by name; every line must be a comment or an exact version with its checksums."""
    found: dict[str, set[str]] = {}
    for line in re.sub(r" \\\n +", " ", path.read_text("ascii")).splitlines():
        if line.startswith("#"):
            continue
        entry = ENTRY.fullmatch(line)
        assert entry, line
        found.setdefault(entry[1], set()).add(entry[2])
    return found


@LOCKS
def test_every_entry_has_checksums_and_says_nothing_of_where_it_came_from(path: Path) -> None:
    assert entries(path)
    assert "://" not in path.read_text("ascii")


def test_the_locks_name_everything_that_is_declared() -> None:
    project = PROJECT["project"]
    assert names_in(project["dependencies"]) <= set(entries(LOCK))
    everything = names_in(project["dependencies"]).union(
        *map(names_in, project["optional-dependencies"].values()), {"editables"}
    )
    assert everything <= set(entries(DEV_LOCK))
    # without build isolation these must be installed before whatever they build
    assert names_in(PROJECT["build-system"]["requires"]) <= set(entries(EDITABLE_LOCK))
    assert set(entries(BUILD_LOCK)) == {"setuptools"}


def test_the_locks_name_a_spark_of_the_range_that_users_may_bring() -> None:
    (declared,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("pyspark")]
    after = f"4.{int(VERSIONS[-1].split('.')[1]) + 1}"
    assert declared == f"pyspark>={VERSIONS[0]},<{after}"
    (locked,) = entries(LOCK)["pyspark"]
    assert is_supported(locked)
    default = (ROOT / "tools" / "default-spark.txt").read_text().splitlines()
    assert [line for line in default if not line.startswith("#")] == [f"pyspark=={locked}"]
    # it would hold for whoever installs a clone with uv, and replace the Spark that is there
    assert "uv" not in PROJECT["tool"]


@pytest.mark.parametrize("path", SPARK_LOCKS, ids=lambda path: path.name)
def test_each_spark_is_tested_with_the_packages_that_are_shipped(path: Path) -> None:
    named, tested = entries(path), entries(DEV_LOCK)
    (version,) = named.pop("pyspark")
    assert version.startswith(f"{path.stem}.")
    named.pop("py4j")
    assert {name: tested[name] for name in named} == named


def test_what_is_tested_is_what_is_shipped() -> None:
    tested = entries(DEV_LOCK)
    for path in (LOCK, BUILD_LOCK, EDITABLE_LOCK, INSTALLER_LOCK):
        assert {name: tested[name] for name in entries(path)} == entries(path)


@JVM_LOCKS
def test_every_file_of_the_jvm_has_a_checksum(folder: Path) -> None:
    lock = ElementTree.parse(folder / "ivy.xml")
    named = {(d.attrib["name"], d.attrib["rev"]) for d in lock.iter("dependency")}
    sums = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest, _ in sums)
    starts = {f"{name}-{rev}" for name, rev in named}
    without = {s for s in starts if not any(re.match(rf"{re.escape(s)}[-.]", f) for _, f in sums)}
    assert not without and len(sums) >= len(starts)


def test_the_bill_of_materials_lists_packages_and_connectors(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "sbom.cdx.json"
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "tools.sbom", str(out)], cwd=ROOT, check=True)
    bill = json.loads(out.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "distributary"
    listed = {part["purl"]: part for part in bill["components"]}
    assert len(listed) == len(bill["components"])
    for name, versions in entries(LOCK).items():
        assert all(f"pkg:pypi/{name}@{version}" in listed for version in versions)
    connector = listed["pkg:maven/org.apache.spark/spark-avro_2.13@4.1.1?type=jar"]
    locks = (SOURCE / "spark" / "jvm" / minor / "SHA256SUMS" for minor in VERSIONS)
    sums = {line for lock in locks for line in lock.read_text().splitlines()}
    assert f"{connector['hashes'][0]['content']}  spark-avro_2.13-4.1.1.jar" in sums
    assert len(listed) == len(sums) + sum(map(len, entries(LOCK).values()))
    assert all(part["hashes"] for part in bill["components"])
