from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import tarfile
from importlib.metadata import PathDistribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from distributary.spark import packages
from tests.cli.conftest import Cli, cli, own_folder

__all__ = ["cli", "own_folder"]


def test_everything_that_executors_need_is_in_it() -> None:
    names = packages.packages()
    assert {"pyarrow", "numpy", "pandas", "deltalake", "ptars", "fastavro", "pydantic"} <= set(
        names
    )
    # what an extra of a package needs
    assert "cachetools" in names
    assert not {"pyspark", "py4j", "pytest", "mypy", "databricks-sdk"} & set(names)
    found = packages.contents()
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
    monkeypatch.setattr(packages, "contents", lambda: names)


def test_the_same_environment_gives_the_same_bytes(small: None, own_folder: Path) -> None:
    one = packages.pack(own_folder / "one.tar.gz")
    packages.pack(own_folder / "two.tar.gz")
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
    monkeypatch.setattr(packages, "contents", lambda: names)
    packages.pack(own_folder / "env.tar.gz")
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
    packages.pack(own_folder / "env.tar.gz")
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
    monkeypatch.setattr(packages, "_OWN", own_folder)
    monkeypatch.setattr(packages, "packages", lambda: ())
    assert set(packages.contents()) == {"lib/distributary/__init__.py", "lib/distributary/a/b.py"}


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
    found = {name for name, _ in packages.files_of(PathDistribution(info))}
    assert found == {"thing.py", f"{info.name}/METADATA"}


def test_a_run_packs_its_environment_once_until_it_changes(
    small: None, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.platformdirs, "user_cache_path", lambda _: own_folder / "cache")
    said: list[str] = []
    first = packages.ensure_archive(said.append)
    again = packages.ensure_archive(said.append)
    assert first == again and len(said) == 1
    (own_folder / "module.py").write_text("WORD = 'another'\n")
    changed = packages.ensure_archive(said.append)
    assert changed != first and len(said) == 2
    assert first.exists()
    os.utime(first, (0, 0))
    packages.ensure_archive()
    assert not first.exists() and changed.exists()
