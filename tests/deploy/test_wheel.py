from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import distributary
import distributary_lab
from distributary.deploy import package
from distributary.errors import DeployError
from tests.cli.conftest import Cli


def test_the_wheel_is_this_installation_and_can_be_installed(own_folder: Path) -> None:
    made = package.write_wheel(own_folder / package.WHEEL)
    again = package.write_wheel(own_folder / "again" / package.WHEEL)
    assert made.path.read_bytes() == again.path.read_bytes()
    site = own_folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(site), str(made.path)], check=True)
    root = Path(distributary.__file__).parent
    for name in (
        "stage/job.py",
        "py.typed",
        "spark/jvm/4.3/SHA256SUMS",
        "deploy/requirements.lock",
    ):
        assert (site / "distributary" / name).read_bytes() == (root / name).read_bytes()
    # the lab as well, of which the entry points name commands
    lab = Path(distributary_lab.__file__).parent
    for name in ("commands/demo.py", "demo/games.yaml", "services/jvm/SHA256SUMS"):
        assert (site / "distributary_lab" / name).read_bytes() == (lab / name).read_bytes()
    # the dashboard's words, which lie elsewhere in a checkout
    pages = site / "distributary"
    assert (pages / "errors.md").read_text().startswith("# Error codes")
    assert (pages / "glossary.md").read_text().startswith("# Glossary")
    code = "from importlib import metadata as m; print(m.version('distributary'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == distributary.__version__
    assert (site / "bin" / "distributary").is_file()
    points = (
        site / f"distributary-{distributary.__version__}.dist-info" / "entry_points.txt"
    ).read_text()
    assert "distributary_lab.commands.demo:app" in points


def test_the_record_of_the_wheel_is_true(own_folder: Path) -> None:
    with zipfile.ZipFile(package.write_wheel(own_folder / package.WHEEL).path) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        assert [row[0] for row in rows] == names
        for name, said, size in rows:
            if name != record:
                digest = hashlib.sha256(archive.read(name)).digest()
                assert said == "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                assert int(size) == archive.getinfo(name).file_size
    # nothing that tells of the machine it was made on
    assert not [name for name in names if name.endswith(("direct_url.json", ".pth", ".pyc"))]


def test_metadata_of_another_version_is_refused(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributary, "__version__", "9.9.9")
    with pytest.raises(DeployError):
        package.write_wheel(own_folder / package.WHEEL)


def test_the_command_takes_the_wheel_s_own_name_only(cli: Cli, own_folder: Path) -> None:
    assert cli("package", "other.whl").code == 2
    tried = cli("package", package.WHEEL, "--dry-run", "--json")
    assert tried.code == 0 and tried.json["packages"] == ["distributary"]
    assert not (own_folder / package.WHEEL).exists()
    done = cli("package", f"image/{package.WHEEL}", "--json")
    assert done.code == 0 and json.loads(done.out)["files"] > 100
    assert (own_folder / "image" / package.WHEEL).is_file()


def test_a_runtime_with_its_own_pyspark_is_asked_for_none(own_folder: Path, cli: Cli) -> None:
    for words, needed in (((), True), (("--without-pyspark",), False)):
        assert cli("package", package.WHEEL, *words).code == 0
        with zipfile.ZipFile(own_folder / package.WHEEL) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
            lines = archive.read(name).decode().splitlines()
        asked = [line for line in lines if line.startswith("Requires-Dist: pyspark")]
        assert bool(asked) is needed
        assert any(line.startswith("Requires-Dist: pyarrow") for line in lines)
