"""The rules of CONTRIBUTING.md that no other tool checks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import distributary

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "distributary"
LAB = SOURCE.with_name("distributary_lab")
MODULES = sorted([*SOURCE.rglob("*.py"), *LAB.rglob("*.py")])
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "core", "misc"}
# `spark*` is the name of a module that needs Spark in a folder that does not
MAY_IMPORT_PYSPARK = (
    *("engine/", "source/", "spark/", "stage/"),
    *("catalog/spark", "publish/spark", "changes/spark", "pipelines/flows", "pipelines/update"),
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def tracked_files() -> list[Path]:
    """What git knows or would add; everything that is not ignored where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name]
    made = {".git", ".venv", "__pycache__", "build", "dist"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not made & set(p.parts)]


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


@cache
def imports_of(path: Path) -> list[str]:
    """What the module imports when it runs; names that only type checkers see do not count."""
    found: list[str] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def names_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].lower() for line in requirements}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else LAB.parent).as_posix()


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_no_drawer_for_everything(folder: str) -> None:
    named = {p: {p.stem, *p.relative_to(ROOT).parts} for p in (ROOT / folder).rglob("*.py")}
    assert not [str(p) for p, parts in named.items() if parts & BANNED_NAMES]


def test_init_files_hold_no_logic() -> None:
    long = [p for p in MODULES if p.name == "__init__.py" and len(text_of(p).splitlines()) > 40]
    assert not [name_of(p) for p in long]


def test_only_the_engine_imports_pyspark() -> None:
    importers = {
        name_of(p) for p in MODULES if any(m.split(".")[0] == "pyspark" for m in imports_of(p))
    }
    assert not [name for name in importers if not name.startswith(MAY_IMPORT_PYSPARK)]


def test_every_imported_package_is_declared() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    declared = names_in(PYPROJECT["project"]["dependencies"]).union(*map(names_in, extras.values()))
    # parts of declared packages that have a distribution of their own
    declared |= {"pydantic-core", "annotated-types", "botocore", "py4j"}
    # brought by the extra `sql-sqlite` of pyiceberg
    declared |= {"sqlalchemy"}
    declared |= {"distributary", "distributary_lab"}
    homes = packages_distributions()
    missing = {}
    for path in MODULES:
        for module in imports_of(path):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top == "__future__":
                continue
            known = {re.sub(r"[-_]+", "-", d).lower() for d in homes.get(top, [])} | {top}
            if not known & declared:
                missing[top] = name_of(path)
    assert not missing


def test_a_run_needs_no_extra() -> None:
    extras = ("boto3", "databricks", "grpc", "openlineage", "pyiceberg", "yaml", "zstandard")
    code = (
        "import sys\n"
        f"sys.modules |= dict.fromkeys({extras!r})\n"
        "import distributary.cli.command_line, distributary.web.dashboard\n"
        "import distributary.operations.replay\n"
        "from distributary import Pipeline\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_no_path_of_a_machine() -> None:
    pattern = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users)/[\w.-]+")
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked_files()
        if path != Path(__file__)
        for match in pattern.finditer(text_of(path))
    }
    assert not found


def test_nothing_is_left_for_later() -> None:
    pattern = re.compile(r"\b(?:TODO|FIXME|XXX)\b|\bNotImplementedError")
    assert not [name_of(p) for p in MODULES if pattern.search(text_of(p))]


def test_version_has_a_section_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[{re.escape(distributary.__version__)}\] - ", changelog, re.MULTILINE)


@pytest.mark.parametrize("number", range(8))
def test_tests_of_a_file_stay_in_one_process(
    number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Or each process makes what their fixtures make: a site, a broker, a browser."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        pytest.skip("the tests are not shared by processes")
    mark = tmp_path_factory.getbasetemp().parent / "process-of-this-file"
    with suppress(FileExistsError), mark.open("x") as first:
        first.write(worker)
    assert mark.read_text() == worker


@pytest.mark.parametrize("package", ["ptars", "pyruhvro"])
def test_a_package_of_one_person_has_one_importer(package: str) -> None:
    importers = [name_of(p) for p in MODULES if package in map(_top, imports_of(p))]
    assert len(importers) == 1


def _top(module: str) -> str:
    return module.partition(".")[0]


def test_tests_of_a_module_are_in_the_folder_of_the_module() -> None:
    """A test file with the name of one module is where that module is; so is each folder."""
    folders: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        folders.setdefault(path.stem, set()).add(path.parent.relative_to(SOURCE).as_posix())
    known = set().union(*folders.values())
    free = {"attack", "benchmarks", "docs", "faults", "lab", "servers"}
    places = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    mirrored = [place for place in places if place.parts[0] not in free and len(place.parts) > 1]
    assert len(mirrored) > 200
    assert not [place for place in mirrored if place.parent.as_posix() not in known]
    for place in mirrored:
        homes = folders.get(place.stem.removeprefix("test_"), set())
        assert len(homes) != 1 or place.parent.as_posix() in homes, place


PARTS_OF_ENTRIES = {
    "source": {"entry", "sample", "source"},
    "decode": {"decoder", "fast_decoder", "format", "schema"},
}
"""Files that each entry of a seam has, by the folder of the seam."""


def test_the_name_of_a_file_occurs_once() -> None:
    """Or a search mixes them up; ARCHITECTURE.md names those that may share their name."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        if path.stem not in {"__init__", "base"}:
            places.setdefault(path.stem, []).append(name_of(path))
    assert len(places) > 350
    mixed_up = {}
    for stem, names in places.items():
        below = [name for name in names if not name.startswith(("cli/", "web/"))]
        seams = {name.split("/")[0] for name in below if name.count("/") > 1}
        parts = len(seams) == 1 and stem in PARTS_OF_ENTRIES.get(seams.pop(), ())
        if len(below) > 1 and not parts:
            mixed_up[stem] = below
    assert not mixed_up


def test_a_source_is_one_entry_in_one_table() -> None:
    """No module but its own asks which source it is; each type has settings and an entry."""
    from distributary.config.sources.source_types import SOURCES, settings_of, type_of
    from distributary.source.source_entry import SourceEntry, entry_of

    names = {settings.__name__ for settings in SOURCES}
    seam = ("config/", "source/")
    outside = [path for path in MODULES if not name_of(path).startswith(seam)]
    assert len(outside) > 200
    assert not [name_of(path) for path in outside if names & set(_types_asked_for(path))]
    assert not [name_of(path) for path in outside if _asks_for_the_type(path)]
    for settings in SOURCES:
        assert settings_of(type_of(settings)) is settings
        assert isinstance(entry_of(settings.model_construct()), SourceEntry)


def _types_asked_for(path: Path) -> Iterator[str]:
    """Yield the names of classes that a module tests values for."""
    for node in ast.walk(ast.parse(text_of(path))):
        is_test = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        if is_test or isinstance(node, ast.MatchClass):
            yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name))
            yield from (name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute))


def _asks_for_the_type(path: Path) -> bool:
    """Return whether a module compares `source.type` or `source.carrier` with a text."""
    pattern = re.compile(r"""\bsource\.(?:type|carrier) (?:[!=]=|in|not in) \(?['"]""")
    compared = [n for n in ast.walk(ast.parse(text_of(path))) if isinstance(n, ast.Compare)]
    return any(pattern.search(ast.unparse(node)) for node in compared)


def test_a_payload_format_is_one_entry_in_one_table() -> None:
    """Outside of the codecs and the registry, no module asks which format payloads have."""
    from distributary.decode.formats import FORMATS
    from distributary.model.record import Format

    # a simulator chooses what it writes
    seam = ("config/", "decode/", "registry/", f"{LAB.name}/")
    outside = [path for path in MODULES if not name_of(path).startswith(seam)]
    assert len(outside) > 200
    named = {
        (name_of(path), node.attr)
        for path in outside
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Format"
    }
    assert not {place for place in named if place[1] in Format.__members__}
    for name, entry in FORMATS.items():
        assert (entry.name, entry.language.value in FORMATS) == (name, True)


def test_a_change_format_is_one_entry_in_one_table() -> None:
    """No module but its own asks in which format change events are; each name has an entry."""
    from distributary.config.cdc import CARRIERS
    from distributary.decode.change.change_formats import CHANGE_FORMATS

    # a simulator chooses what it writes
    seam = ("config/", "decode/change/", f"{LAB.name}/")
    outside = [path for path in MODULES if not name_of(path).startswith(seam)]
    assert len(outside) > 200
    compared = {(name_of(p), text) for p in outside for text in _texts_compared(p)}
    assert not {place for place in compared if place[1] in CHANGE_FORMATS}
    assert set(CARRIERS) == set(CHANGE_FORMATS)
    for name, entry in CHANGE_FORMATS.items():
        assert (entry.name, bool(entry.label)) == (name, True)


def test_a_catalog_is_one_entry_in_one_table() -> None:
    """No module but its own asks which catalog it is; each type of settings opens one."""
    from typing import get_args

    from distributary.catalog.catalogs import CATALOGS
    from distributary.config.catalog import CatalogConfig

    assert set(CATALOGS) == set(get_args(get_args(CatalogConfig)[0]))
    names = {settings.__name__ for settings in CATALOGS}
    assert not [name_of(path) for path in MODULES if names & set(_types_asked_for(path))]


def test_a_table_format_is_one_entry_in_one_table() -> None:
    """No module but its own asks which format a table has; each name has facts and an entry."""
    from distributary.model.table_format import DELTA, TABLE_FORMATS
    from distributary.publish.formats.table_format_entry import TableFormatEntry, format_entry

    names = set(TABLE_FORMATS) - {DELTA}
    seam = ("model/table_format.py", "publish/", "source/files/", "config/sources/", "lab/")
    outside = [path for path in MODULES if not name_of(path).startswith(seam)]
    assert len(outside) > 200
    compared = {
        name_of(path) for path in outside for text in _texts_compared(path) if text in names
    }
    assert not compared
    for name in TABLE_FORMATS:
        assert isinstance(format_entry(name), TableFormatEntry)


def _texts_compared(path: Path) -> Iterator[str]:
    """Yield the texts that a module compares values with."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Compare | ast.MatchValue):
            for value in ast.walk(node):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_a_deploy_target_is_one_entry_in_one_table() -> None:
    """No module but its own asks which target it is; each name has an entry."""
    from distributary.config.deploy import Deploy
    from distributary.deploy.targets.target_entry import TargetEntry
    from distributary.deploy.targets.target_types import TARGETS, target_entry

    seam = ("deploy/targets/", "config/")
    outside = [path for path in MODULES if not name_of(path).startswith(seam)]
    compared = {(name_of(p), text) for p in outside for text in _texts_compared(p)}
    # `grants --through databricks` is no target of `install`
    assert not {p for p, text in compared if text in TARGETS and p != "deploy/grants.py"}
    for name in TARGETS:
        entry = target_entry(name)
        assert isinstance(entry, TargetEntry)
        has_settings = entry.section in Deploy.model_fields
        assert (entry.name, has_settings) == (name, bool(entry.section))
