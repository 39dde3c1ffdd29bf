"""A lake whose own files were changed by somebody: commands say so, and none breaks."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from distributary.errors import ErrorCode
from tests.attack.mutations import mutated, replanted
from tests.cli.conftest import Cli, cli, own_folder
from tests.lakes.settled import SettledLake

__all__ = ["cli", "own_folder"]

pytestmark = pytest.mark.slow
COMMANDS = (
    ("status", "--lake", "LAKE"),
    ("tables", "--lake", "LAKE"),
    ("verify", "--all", "--lake", "LAKE"),
    ("verify", "--all", "--deep", "--lake", "LAKE"),
    ("schema", "show", "silver_chess", "--lake", "LAKE"),
    ("dlq", "list", "--lake", "LAKE"),
    ("trace", "wrapper/0/1", "--lake", "LAKE"),
    ("resume", "silver_go", "--lake", "LAKE"),
    ("maintain", "FILE"),
    ("recover", "FILE", "--dry-run"),
    ("reset", "FILE", "--dry-run"),
    ("clean", "FILE", "--yes"),
)
EXITS = {0, 1, 2, 75}


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> SettledLake:
    made = SettledLake(tmp_path_factory.mktemp("settled"), unified=True)
    made.batch({"chess": 3, "go": 2}, letters=2)
    made.batch({"chess": 1, "go": 1}, parked=["silver_go"])
    made.batch({"chess": 2}, settled=False)
    return made


def spoil(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    try:
        tree = json.loads(data)
        content = json.dumps(replanted(tree, dice)).encode()
    except (ValueError, TypeError):
        content = mutated(data, dice)
    path.write_bytes(content if dice.random() < 0.7 else mutated(data, dice))


@pytest.mark.parametrize("kind", ["own", "logs", "rows"])
def test_commands_on_a_lake_that_was_changed(
    cli: Cli, settled: SettledLake, tmp_path: Path, dice: random.Random, kind: str
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(settled.root, root)
    for path in root.rglob("*"):
        # the copy must not lead back to the lake that it is a copy of
        if path.suffix in (".json", ".yaml") and path.is_file():
            path.write_text(path.read_text().replace(str(settled.root), str(root)))
    lake = root / "lake"
    patterns = {
        "own": ("_distributary/pipelines/**/*.json", "_checkpoints/**/*", "_distributary/names/*"),
        "logs": ("**/_delta_log/*.json",),
        "rows": ("**/*.parquet",),
    }
    every = sorted(p for pattern in patterns[kind] for p in lake.glob(pattern) if p.is_file())
    for path in dice.sample(every, k=min(len(every), dice.randrange(1, 4))):
        spoil(path, dice)
    for command in COMMANDS:
        named = {"LAKE": str(lake), "FILE": str(root / "games.yaml")}
        result = cli(*(named.get(word, word) for word in command), "--json")
        assert result.code in EXITS, (command, result.err)
        assert f'"code": "{ErrorCode.INTERNAL}"' not in result.out, (command, result.out)
    assert (settled.lake / "silver_chess").is_dir()
