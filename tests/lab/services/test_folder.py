from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.errors import ConfigError, ErrorCode, SetupError
from distributary_lab.services.processes import is_free
from distributary_lab.services.services import (
    alone,
    choose_ports,
    contents,
    forget,
    remember,
    remembered,
    wipe,
)
from tests.lab.services.marked import start_marked

PORTS = {"kafka": 9092, "registry": 8081, "controller": 9093}
SECURED = (*PORTS, "sasl_plaintext", "sasl_ssl", "ssl", "https")
NONE = {"kafka": 0, "registry": 0}


def silent(_: str) -> None:
    pass


def test_ports_are_remembered_until_they_are_forgotten(tmp_path: Path) -> None:
    assert remembered(tmp_path) is None
    remember(tmp_path, PORTS)
    assert remembered(tmp_path) == PORTS
    forget(tmp_path)
    forget(tmp_path)
    assert remembered(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00\xff",
        json.dumps({"kafka": 9092}),
        json.dumps(PORTS | {"kafka": "9092"}),
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    tmp_path.joinpath("ports.json").write_text(text, "latin-1")
    assert remembered(tmp_path) is None


def test_only_what_was_made_here_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    with alone(folder, silent):
        remember(folder, PORTS)
    folder.joinpath("notes.txt").write_text("mine")
    assert {path.name for path in contents(folder)} == {"logs", "ports.json", ".lock"}
    wipe(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    folder.joinpath("notes.txt").unlink()
    wipe(folder)
    wipe(folder)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(SetupError) as caught, alone(tmp_path / "file" / "dev", silent):
        pass
    assert caught.value.code is ErrorCode.SERVICE_FAILED


def test_ports_that_nobody_names_are_free_and_differ() -> None:
    ports = choose_ports(SECURED, asked=NONE, live={}, before={}, usual={})
    numbers = list(ports.values())
    assert len(set(numbers)) == len(numbers)
    assert all(is_free(port) for port in numbers)
    # none that the system could give to a client of the broker while that is down
    assert max(numbers) < 32_768


def test_asked_goes_before_remembered_goes_before_usual() -> None:
    usual = {"kafka": 9092, "registry": 8081}
    new = choose_ports([*PORTS], asked=NONE, live={}, before={}, usual=usual)
    assert (new["kafka"], new["registry"]) == (9092, 8081)
    assert new.keys() == PORTS.keys()
    again = choose_ports([*PORTS], asked=NONE, live={}, before=new, usual={})
    assert again == new
    asked = {"kafka": 1234, "registry": 0}
    other = choose_ports([*PORTS], asked=asked, live={}, before=new, usual=usual)
    assert (other["kafka"], other["registry"]) == (1234, 8081)


def test_what_runs_keeps_its_port(folder: Path) -> None:
    live = {"kafka": start_marked(folder, "kafka", 19092)}
    chosen = choose_ports([*PORTS], asked=NONE, live=live, before=PORTS, usual={})
    assert (chosen["kafka"], chosen["registry"]) == (19092, 8081)
    with pytest.raises(ConfigError):
        choose_ports([*PORTS], asked={"kafka": 9092}, live=live, before=PORTS, usual={})


def test_secured_listeners_stay_where_they_were() -> None:
    first = choose_ports(SECURED, asked=NONE, live={}, before={}, usual={})
    assert choose_ports(SECURED, asked=NONE, live={}, before=first, usual={}) == first
