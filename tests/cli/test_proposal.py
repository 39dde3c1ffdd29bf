from pathlib import Path

import pytest

from distributary_lab.simulate.dice import event
from distributary_lab.simulate.game_records import GamesPlan
from tests.cli.conftest import Cli
from tests.lakes.games import Games


@pytest.fixture
def games(own_folder: Path) -> Games:
    made = Games(own_folder, GamesPlan(games=3, versions=2, records=4))
    made.send_all()
    made.write_file()
    return made


def schema(made: Games, text: str) -> Path:
    path = made.root / f"{made.plan.names[0]}.proto"
    path.write_text(text)
    return path


def test_a_proposed_schema_is_told_in_three_ways(games: Games, cli: Cli) -> None:
    name = games.plan.names[0]
    line = ("plan", "games.yaml", "--with-schema", schema(games, event(name, 3)), "--check")
    said = cli(*line)
    assert said.code == 0, said.err
    assert f"{name}.proto as {name}-value v3" in said.out
    assert f"    + column col_{name}_2 string\n" in said.out
    assert "8 records tried of 24 read: 8 decode." in said.out
    document = cli(*line, "--json").json
    assert (document["version"], document["subject_version"]) == (1, 3)
    assert (document["breaks"], document["trial"]["decoded"]) == (False, 8)
    assert cli(*line, "--markdown").out.startswith(f"### Schema change: `{name}-value v3`\n\n")


def test_check_fails_for_what_would_break(games: Games, cli: Cli) -> None:
    name = games.plan.names[0]
    text = event(name, 2).replace("string user_name = 2", "int64 user_name = 2")
    line = ("plan", "games.yaml", "--with-schema", schema(games, text), "--type", name)
    assert cli(*line).code == 0
    said = cli(*line, "--check")
    assert said.code == 1
    assert "not compatible at level FULL" in said.out
    assert "**This change would break records or the pipeline.**" in cli(*line, "--markdown").out


def test_nonsense_is_refused(games: Games, cli: Cli) -> None:
    path = schema(games, event(games.plan.names[0], 3))
    given = ("plan", "games.yaml", "--with-schema", path)
    assert cli("plan", "games.yaml", "--markdown").code == 2
    assert cli("plan", "games.yaml", "--subject", "x").code == 2
    assert cli(*given, "--markdown", "--json").code == 2
    assert cli(*given, "--subject", "a", "--type", "b").code == 2
    assert cli("plan", "games.yaml", "--with-schema", "nowhere.proto").code == 2
    other = path.rename(path.with_name("new.proto"))
    said = cli("plan", "games.yaml", "--with-schema", other, "--json")
    assert said.code == 2
    assert all(f"{name}-value" in said.json["error"]["evidence"] for name in games.plan.names)


def test_a_schema_that_shape_cannot_take_is_refused_with_the_line(games: Games, cli: Cli) -> None:
    name = games.plan.names[0]
    file = games.root / "games.yaml"
    before = file.read_text()
    lines = len(before.rstrip().splitlines())
    shape = f'shape:\n  - types: [{name}]\n    set: {{short: "left(user_name, 2)"}}\n'
    file.write_text(f"{before.rstrip()}\n{shape}")
    given = ("plan", "games.yaml", "--with-schema")
    said = cli(*given, schema(games, event(name, 3)))
    assert "    shaped to " in said.out
    assert "short string" in said.out.replace("\n", " ")
    text = event(name, 2).replace("string user_name = 2", "int64 user_name = 2")
    (refusal,) = cli(*given, schema(games, text), "--type", name, "--json").json["refusals"]
    assert refusal["place"] == f"games.yaml:{lines + 3}:18"
