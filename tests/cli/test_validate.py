import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

GOOD = """\
name: games
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:9092
  topics: [wrapper]
  starting_offsets: earliest
registry:
  url: http://127.0.0.1:8081
  username: me
  password: ${env:SECRET}
envelope: {subject: wrapper-value, type: game_name}
payload: {format: protobuf}
tables: {each: "silver_{type}"}
lake: {path: ./lake}
"""


@pytest.fixture
def file(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECRET", "hunter2")
    path = own_folder / "p.yaml"
    path.write_text(GOOD)
    return path


def test_a_good_file(file: Path, cli: Cli) -> None:
    result = cli("validate", "p.yaml")
    assert result.code == 0
    assert result.out.startswith("p.yaml is valid")
    document = cli("validate", "p.yaml", "--json").json
    assert (document["valid"], document["pipeline"]) == (True, "games")


def test_all_problems_at_once_each_with_its_place(file: Path, cli: Cli) -> None:
    text = GOOD.replace("starting_offsets", "start_offsets").replace("name: games", "nmae: games")
    file.write_text(text)
    result = cli("validate", "p.yaml")
    assert result.code == 2
    assert "p.yaml:6:3  CONFIG_UNKNOWN_KEY" in result.err
    assert "did you mean starting_offsets?" in result.err
    assert "p.yaml:1:1" in result.err
    problems = cli("validate", "p.yaml", "--json").json["error"]["problems"]
    assert {(p["line"], p["code"]) for p in problems} >= {(6, "CONFIG_UNKNOWN_KEY")}


def test_each_value_with_its_origin_and_no_secret(file: Path, cli: Cli) -> None:
    result = cli("validate", "p.yaml", "--show-config")
    assert "hunter2" not in result.out
    assert "***" in result.out
    assert "p.yaml:6" in result.out
    document = cli("validate", "p.yaml", "--show-config", "--json").json
    settings = {row["key"]: row for row in document["settings"]}
    assert settings["source.starting_offsets"]["origin"]["line"] == 6
    assert settings["registry.password"]["value"] == "***"
    assert settings["trigger"]["origin"]["kind"] == "default"


def test_the_schema_of_the_file_needs_no_file(cli: Cli) -> None:
    result = cli("validate", "--print-schema")
    assert result.code == 0
    assert json.loads(result.out)["$schema"].startswith("https://json-schema.org")
    assert cli("validate", "--print-schema", "--json").json["schema"]["title"]
    assert cli("validate").code == 2


def test_a_missing_file(cli: Cli) -> None:
    result = cli("validate", "nothing.yaml")
    assert result.code == 2
    assert "CONFIG_UNREADABLE" in result.err
