"""No secret of a pipeline file is in anything that a command says, writes, starts or serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pydantic import SecretStr

from distributary.config.base import Section
from distributary.config.load import alternatives, load
from distributary_lab.services.processes import free_port
from tests.attack.canaries import SOURCES, WAYS, Canaries, pipeline_file, running_file
from tests.cli.conftest import Cli, cli, own_folder
from tests.registry.loopback import Asked, Says, serving
from tests.web.conftest import running

__all__ = ["cli", "own_folder"]

COMMANDS = (
    ("validate", "FILE"),
    ("validate", "FILE", "--show-config"),
    ("validate", "FILE", "--show-config", "--json"),
    ("plan", "FILE", "--debug", "-vv"),
    ("plan", "FILE", "--json"),
    ("doctor", "FILE"),
    ("doctor", "FILE", "--json"),
    ("status", "FILE"),
    ("alerts", "test", "FILE", "--debug", "-vv"),
    ("alerts", "test", "FILE", "--json"),
    ("reset", "FILE", "--dry-run"),
    ("clean", "FILE", "--dry-run", "--debug"),
    ("grants", "plan", "FILE"),
    ("maintain", "FILE", "--dry-run"),
    ("install", "FILE", "--target", "systemd", "--out", "OUT/systemd"),
    ("install", "FILE", "--target", "airflow", "--out", "OUT/airflow"),
    ("install", "FILE", "--target", "spark-submit", "--out", "OUT/submit"),
    ("install", "FILE", "--target", "kubernetes", "--out", "OUT/kubernetes"),
    ("run", "FILE", "--no-such-option"),
)


def repeats(asked: Asked) -> Says:
    """A server that refuses, with everything it was told in the answer."""
    if "/oauth/token" in asked.path and asked.body.count(b"canary") == 1:
        return Says(200, b'{"access_token": "canary-token", "token_type": "Bearer"}')
    told = f"{asked.path} {asked.headers} {asked.body.decode('latin-1')}"
    content = {"error_code": 40101, "error": "invalid_client", "message": told}
    return Says(401, json.dumps(content | {"error_description": told}).encode())


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SOURCES)
def test_commands_tell_no_secret(
    cli: Cli, own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    canaries = Canaries(kept, way)
    out = tmp_path / "out"
    with serving(repeats) as server:
        text = pipeline_file(
            canaries, kind, lake=tmp_path / "lake", url=server.url, port=free_port(but=set())
        )
        file = kept / "hunted.yaml"
        file.write_text(text)
        for name, word in canaries.environ.items():
            monkeypatch.setenv(name, word)
        for command in COMMANDS:
            words = [str(file) if w == "FILE" else w.replace("OUT", str(out)) for w in command]
            result = cli(*words)
            assert not canaries.found_in(result.out + result.err), command
            assert command[0] != "validate" or result.code == 0, result.err
    assert server.asked
    copies = {path for path in out.rglob("hunted*.yaml")} if way == "literal" else set()
    found = list(canaries.found_below(tmp_path, but={kept, *copies}))
    assert not found
    assert all(path.stat().st_mode & 0o077 == 0 for path in copies)


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_leaves_no_secret_behind(tmp_path: Path) -> None:
    kept, left = tmp_path / "kept", tmp_path / "left"
    for folder in (kept, left / "events", left / "home"):
        folder.mkdir(parents=True)
    canaries = Canaries(kept, "literal")
    write_deltalake(str(tmp_path / "rows"), pa.table({"value": [b'{"n": 1}', b"{bad"]}))
    file, said = kept / "hunted.yaml", []
    environ = os.environ | {
        "XDG_STATE_HOME": str(left / "state"),
        "DISTRIBUTARY_TOKEN": "canary.ui/99+x",
    }
    canaries.words["ui"] = environ["DISTRIBUTARY_TOKEN"]
    with serving(repeats) as server:
        file.write_text(
            running_file(canaries, source=tmp_path / "rows", folder=left, url=server.url)
        )
        lake = ("--lake", str(left / "lake"))
        for command in (
            ("run", str(file), "-vv", "--debug"),
            ("status", *lake, "--json"),
            ("tables", *lake),
            ("dlq", "list", *lake, "--json"),
            ("verify", "--all", *lake, "--json"),
            ("maintain", str(file), "--json"),
            ("doctor", str(file)),
        ):
            code, text, lines = watched([sys.executable, "-m", "distributary", *command], environ)
            assert code == 0 or command[0] == "doctor", text
            assert not canaries.found_in(text), command
            assert not canaries.found_in("\n".join(lines)), command
            said.append(lines)
        assert any("java" in line for lines in said for line in lines)
        assert server.asked
    with running(left / "lake") as page, page.client() as client:
        for path in PAGES:
            assert not canaries.found_in(client.get(path).text), path
    assert any((left / "events").iterdir())
    assert not list(canaries.found_below(left, but=set()))


PAGES = (
    *("/", "/tables", "/api/overview", "/api/pipelines/hunted", "/api/tables", "/api/errors"),
    *("/api/tables/rows", "/api/preview?table=raw", "/api/dead-letters", "/api/batches"),
    *("/api/schemas", "/api/search?q=canary", "/api/jobs", "/api/session", "/api/healing"),
    *("/api/series?pipeline=hunted", "/api/batches/hunted/0", "/api/no-such-thing"),
)


def watched(command: list[str], environ: dict[str, str]) -> tuple[int, str, set[str]]:
    """What a command says, and the command lines of everything that it starts."""
    lines: set[str] = set()
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.1):
                with suppress(psutil.Error):
                    every = psutil.Process(child.pid).children(recursive=True)
                    lines.update(" ".join(each.cmdline()) for each in every)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            text = child.communicate(timeout=300)[0]
        finally:
            ended.set()
            looking.join()
    return child.returncode, text, lines


def test_every_setting_that_is_secret_has_its_canary(tmp_path: Path) -> None:
    seen: set[str] = set()
    for kind in SOURCES:
        canaries = Canaries(tmp_path, "literal")
        file = tmp_path / f"{kind}.yaml"
        file.write_text(
            pipeline_file(canaries, kind, lake=tmp_path, url="http://127.0.0.1:1", port=1)
        )
        loaded = load(file)
        seen |= set(given(loaded.config))
        assert not canaries.found_in(repr(loaded) + loaded.config.model_dump_json())
    missing = set(sealed(type(loaded.config))) - seen
    # the options of a store are the same whatever lies in it
    assert {name for name in missing if not name.endswith(".storage_options")} == set()


def sealed(kind: type[Section]) -> Iterator[str]:
    """The secret settings of a section and of those in it, as `Section.setting`."""
    for name, info in kind.model_fields.items():
        for part in flat(info.annotation):
            if part is SecretStr:
                yield f"{kind.__name__}.{name}"
            elif isinstance(part, type) and issubclass(part, Section):
                yield from sealed(part)


def flat(annotation: Any) -> Iterator[Any]:
    for part in alternatives(annotation):
        inner = getattr(part, "__args__", ())
        if part is SecretStr or not inner:
            yield part
        for each in inner:
            yield from flat(each)


def given(section: Section) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from given(inner)
        values = value.values() if isinstance(value, dict) else [value]
        if any(isinstance(each, SecretStr) for each in values):
            yield f"{type(section).__name__}.{name}"
