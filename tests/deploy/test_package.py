from __future__ import annotations

import py_compile
import subprocess
import sys
import tarfile
from importlib.metadata import PathDistribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from distributary.deploy import package
from tests.cli.conftest import Cli


def test_everything_that_executors_need_is_in_it() -> None:
    names = package.packages()
    assert {"pyarrow", "numpy", "pandas", "deltalake", "ptars", "fastavro", "pydantic"} <= set(
        names
    )
    # what an extra of a package needs
    assert "cachetools" in names
    assert not {"pyspark", "py4j", "pytest", "mypy", "databricks-sdk"} & set(names)
    found = package.contents()
    assert "lib/distributary/stage/job.py" in found
    assert "lib/distributary/py.typed" in found
    assert any(name.startswith("lib/pyarrow/") for name in found)
    assert not [
        name for name in found if "__pycache__" in name or ".." in name or "/tests/" in name
    ]


@pytest.fixture
def small(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = own_folder / "module.py"
    module.write_text("WORD = 'packed'\n")
    names = {"lib/packed_only_here.py": module, "lib/a ü.txt": module}
    monkeypatch.setattr(package, "contents", lambda: names)


def test_the_same_environment_gives_the_same_bytes(small: None, own_folder: Path) -> None:
    one = package.pack(own_folder / "one.tar.gz")
    package.pack(own_folder / "two.tar.gz")
    assert (own_folder / "one.tar.gz").read_bytes() == (own_folder / "two.tar.gz").read_bytes()
    assert one.files == 2 and one.bytes == one.path.stat().st_size
    assert [p.name for p in own_folder.iterdir() if p.name.startswith(".")] == []


def test_compiled_modules_are_believed_only_if_they_are_of_their_source(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, stale, none = (own_folder / f"{name}.py" for name in ("fresh", "stale", "none"))
    for module in (fresh, stale, none):
        module.write_text("WORD = 'one'\n")
    for module in (fresh, stale):
        py_compile.compile(str(module), doraise=True)
    stale.write_text("WORD = 'another'\n")
    names = {f"lib/{module.name}": module for module in (fresh, stale, none)}
    monkeypatch.setattr(package, "contents", lambda: names)
    package.pack(own_folder / "env.tar.gz")
    with tarfile.open(own_folder / "env.tar.gz") as archive:
        compiled = [name for name in archive.getnames() if name.endswith(".pyc")]
        archive.extractall(own_folder / "place", filter="data")
    assert compiled == [cache_from_source("lib/fresh.py")]
    # so it shows that nothing is compiled again
    (own_folder / "place" / "lib" / "fresh.py").write_text("WORD = 'compiled'\n")
    done = subprocess.run(
        [sys.executable, "-c", "import fresh, stale; print(fresh.WORD, stale.WORD)"],
        env={"PYTHONPATH": str(own_folder / "place" / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["one", "another"]


def test_the_archive_works_wherever_it_is_unpacked(small: None, own_folder: Path) -> None:
    package.pack(own_folder / "env.tar.gz")
    place = own_folder / "some where"
    with tarfile.open(own_folder / "env.tar.gz", "r:gz") as archive:
        archive.extractall(place, filter="data")
    code = "import packed_only_here; print(packed_only_here.WORD)"
    done = subprocess.run(
        ["bin/python", "-c", code],
        cwd=place,
        env={"PATH": "/usr/bin:/bin", "DISTRIBUTARY_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("packed\n", 0), done.stderr


def test_the_command(small: None, cli: Cli, own_folder: Path) -> None:
    for name in ("env.zip", "env.tar"):
        assert cli("package", name).code == 2
    tried = cli("package", "env.tar.gz", "--dry-run", "--json")
    assert tried.code == 0 and tried.json["files"] > 0
    assert not (own_folder / "env.tar.gz").exists()
    assert cli("package", "folder/env.tar.gz").code == 0
    (own_folder / "file").write_text("")
    assert cli("package", "file/env.tar.gz").code == 1


def test_what_lies_hidden_beside_the_code_is_not_packed(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__init__.py", "a/b.py", ".env", "a/.netrc", ".git/config"):
        (own_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (own_folder / name).write_text("x")
    monkeypatch.setattr(package.distributary, "__file__", str(own_folder / "__init__.py"))
    monkeypatch.setattr(package, "packages", lambda: ())
    assert set(package.contents()) == {"lib/distributary/__init__.py", "lib/distributary/a/b.py"}


def test_where_a_package_was_installed_from_is_not_packed(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = own_folder / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: thing\nVersion: 1.0\n")
    # an address may hold a token, and pip keeps it as it was given
    (info / "direct_url.json").write_text('{"url": "https://host/thing.whl?token=canary"}')
    (own_folder / "thing.py").write_text("x = 1")
    listed = ["thing.py", f"{info.name}/direct_url.json", f"{info.name}/METADATA", "/etc/hostname"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in listed))
    found = {name for name, _ in package.files_of(PathDistribution(info))}
    assert found == {"thing.py", f"{info.name}/METADATA"}
