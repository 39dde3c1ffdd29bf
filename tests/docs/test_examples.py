"""Nothing in the documentation is only written down: files load, commands parse, code compiles."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from distributary.cli.command_line import application
from distributary.config.load import Loaded, load_text
from tests.docs.pages import (
    DOCS,
    PAGES,
    ROOT,
    Block,
    blocks,
    every_block,
    runnable,
    typed_in_prose,
)

BLOCKS = every_block()
# the page of formats of one's own needs the package that it writes: see test_own_formats.py
PLUGGED = DOCS / "howto" / "own-formats.md"
FILES = [b for b in BLOCKS if b.language in ("yaml", "yml") and b.page != PLUGGED]
# usage in `text` blocks of the reference has placeholders
TYPED = [
    (str(block), line) for block in BLOCKS if block.language != "text" for line in block.commands()
]
IN_PROSE = [(page.name, line) for page in PAGES for line in typed_in_prose(page)]
WHOLE = {"name", "source", "tables", "lake"}
COMPLETES = "# completes the file above"
# building it takes as long as ten of the tests that look into it
PROGRAM: Any = typer.main.get_command(application())


def sections(text: str) -> dict[str, Any]:
    loaded = YAML().load(text)
    assert isinstance(loaded, dict), "not a mapping of sections"
    return loaded


def is_whole(block: Block) -> bool:
    return sections(block.text).keys() >= WHOLE


def base_of(block: Block) -> Block:
    """The whole file that a part completes."""
    if not block.text.startswith(COMPLETES):
        return next(b for b in blocks(DOCS / "quick-start.md") if b.language == "yaml")
    above = [b for b in blocks(block.page) if b.language == "yaml" and b.line < block.line]
    return [b for b in above if is_whole(b)][-1]


def completed(block: Block) -> str:
    if is_whole(block):
        return block.text
    text = StringIO()
    YAML().dump({**sections(base_of(block).text), **sections(block.text)}, text)
    return text.getvalue()


def load_with_stand_ins(text: str, folder: Path) -> Loaded:
    """With some value for each variable and each file that it names."""
    (folder / "secret").write_text("stand-in")
    text = re.sub(r"\$\{(?:file|databricks):[^}]+\}", f"${{file:{folder / 'secret'}}}", text)
    names = re.findall(r"\$\{env:(\w+)\}", text)
    environ: Mapping[str, str] = {name: f"https://{name.lower()}.example" for name in names}
    return load_text(text, environ=environ)


@pytest.mark.parametrize("block", FILES, ids=str)
def test_every_pipeline_file_is_one(block: Block, tmp_path: Path) -> None:
    loaded = load_with_stand_ins(completed(block), tmp_path)
    assert loaded.warnings == (), "the documentation uses a key that will go away"


def parse(arguments: list[str]) -> None:
    """What the program itself does before it does anything."""
    node, path = PROGRAM, "distributary"
    while below := getattr(node, "commands", None):
        assert arguments, f"{path}: no command"
        path = f"{path} {arguments[0]}"
        assert arguments[0] in below, f"{path}: no such command"
        node, arguments = below[arguments[0]], arguments[1:]
    if not {"--help", "-h"} & set(arguments):
        node.make_context(path, list(arguments))


@pytest.mark.parametrize(("place", "line"), TYPED, ids=[f"{p} {c}" for p, c in TYPED])
def test_every_command_can_be_typed(place: str, line: str) -> None:
    arguments = shlex.split(line)[1:]
    if arguments and arguments[0].startswith("--"):
        assert arguments[0] in {"--help", "--version", "--install-completion"}
        return
    parse(arguments)


@pytest.mark.parametrize(("place", "line"), IN_PROSE, ids=[f"{p} {c}" for p, c in IN_PROSE])
def test_every_command_in_a_sentence_exists(place: str, line: str) -> None:
    words = re.sub(r"\.\.\.|[\[\]]", "", line).split()[1:]
    node = PROGRAM
    while words and (below := getattr(node, "commands", None)):
        # `dlq list|show`: one of several
        names = words.pop(0).split("|")
        if names[0].startswith("-"):
            return
        assert set(names) <= below.keys(), line
        node = below[names[0]]
    known = {option for param in getattr(node, "params", ()) for option in param.opts}
    asked = {word.split("=")[0] for word in words if re.match(r"--\w", word)}
    assert asked <= known | {"--help"}, line


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked = {line.split()[1] for block in BLOCKS for line in block.commands("make")}
    assert asked
    assert asked <= targets


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_every_piece_of_python_compiles_and_imports_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distributary"):
            missing = [n.name for n in node.names if not exists(str(node.module), n.name)]
            assert missing == []


def exists(module: str, name: str) -> bool:
    """Whether a module has it; PySpark is not imported to find out."""
    found = importlib.import_module(module)
    return name in getattr(found, "__all__", ()) or hasattr(found, name) or is_module(module, name)


def is_module(package: str, name: str) -> bool:
    return importlib.util.find_spec(f"{package}.{name}") is not None


def test_what_is_promised_to_run_is_run_by_the_tests_of_the_command_line() -> None:
    marked = {block.run_after for block in BLOCKS if block.run_after}
    assert marked == {"demo games", "demo cdc"}
    tests = (ROOT / "tests" / "cli" / "test_spark_commands.py").read_text("utf-8")
    for demo in marked:
        assert runnable(demo)
        assert f'runnable("{demo}")' in tests
