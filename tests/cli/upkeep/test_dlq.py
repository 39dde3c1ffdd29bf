from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distributary.cli.command.log_file import LogFile
from distributary.cli.command.output import Output
from distributary.cli.command.verb import Invocation
from distributary.cli.upkeep.dlq import Selection
from distributary.errors import ConfigError
from distributary.model.deadletter import dead_letter_id
from distributary.observe.deadletters import hexdump, short_bytes
from tests.cli.conftest import Cli
from tests.lakes.written import FRAME, letter, make_lake

ID = dead_letter_id("games", "life", "wrapper", 0, 20)


@pytest.fixture
def lake(own_folder: Path) -> Path:
    return make_lake(own_folder / "lake")


def test_list_groups_by_reason(lake: Path, cli: Cli) -> None:
    document = cli("dlq", "list", "--json").json
    assert document["total"] == 3
    assert [(r["code"], r["count"]) for r in document["reasons"]] == [
        ("UNKNOWN_SCHEMA_ID", 2),
        ("NULL_VALUE", 1),
    ]
    assert document["reasons"][0]["first_seen"] == "2026-01-31T12:00:00.000Z"
    text = cli("dlq", "list").out
    assert f"distributary dlq show {document['reasons'][0]['example']}" in text
    assert cli("dlq", "list", "--reason", "NULL_VALUE", "--json").json["total"] == 1
    assert cli("dlq", "list", "--type", "go", "--json").json["total"] == 0
    assert cli("dlq", "list", "--status", "replayed").out == "no replayed dead letters\n"


def test_a_long_name_of_a_type_does_not_flood_the_list(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake", letters=[letter(20, type="a" * 300)])
    assert max(map(len, cli("dlq", "list").out.splitlines())) < 150


def test_show_has_the_whole_record(lake: Path, cli: Cli) -> None:
    result = cli("dlq", "show", ID[:8])
    assert result.code == 0
    for part in ("wrapper/0/20", "UNKNOWN_SCHEMA_ID", "header", "trace", "00000010  0a 0b"):
        assert part in result.out
    # the frame has six bytes and the failing byte is the third after it
    assert result.out.index("^^ byte 3 of the message") > result.out.index("00000000")
    assert "\x1b" not in result.out
    document = cli("dlq", "show", ID, "--json").json
    assert document["value"] == (FRAME + bytes(range(34))).hex()
    assert document["failing_byte"] == 9


def test_show_of_an_unknown_id(lake: Path, cli: Cli) -> None:
    assert cli("dlq", "show", "ffffffff").err.startswith("NOT_FOUND")
    assert cli("dlq", "show", "../../etc").err.startswith("NOT_FOUND")


def test_discard_says_why_and_only_once(lake: Path, cli: Cli) -> None:
    line = ("dlq", "discard", "--reason", "NULL_VALUE", "--note", "from tests")
    assert cli(*line, "--dry-run").out == "1 dead letter would be discarded\n"
    assert cli("dlq", "list", "--json").json["total"] == 3
    assert cli(*line, "--json").json["discarded"] == 1
    assert cli(*line).out == "0 discarded\n"
    assert cli("dlq", "list", "--json").json["total"] == 2
    shown = cli("dlq", "show", dead_letter_id("games", "life", "wrapper", 0, 22), "--json").json
    assert (shown["status"], shown["note"]) == ("discarded", "from tests")


def test_discard_of_everything_needs_a_yes(lake: Path, cli: Cli) -> None:
    refused = cli("dlq", "discard", "--note", "all")
    assert refused.code == 2
    assert refused.err.startswith("CONFIRMATION_NEEDED")
    assert cli("dlq", "list", "--json").json["total"] == 3
    assert cli("dlq", "discard", "--note", "all", "--yes", "--json").json["discarded"] == 3


def test_discard_of_one_record(lake: Path, cli: Cli) -> None:
    assert cli("dlq", "discard", "--note", "x", "--id", ID[:10]).out == "1 discarded\n"
    assert (
        cli("dlq", "discard", "--note", "x", "--offset", "wrapper/0/21-22").out == "2 discarded\n"
    )


def criteria(**given: str) -> dict[str, Any]:
    call = Invocation("dlq replay", Output(), LogFile("replay"))
    return Selection(**given).criteria(call)


def test_selections_are_read_as_typed() -> None:
    assert Selection().is_everything
    assert not Selection(reason="NULL_VALUE").is_everything
    assert criteria(offset="a/b/3/10-20")["offsets"] == (10, 20)
    assert criteria(offset="a/b/3/10")["topic"] == "a/b"
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert criteria(since="2026-01-31T12:00Z")["since"] == noon
    assert criteria(until="2026-01-31T12:00")["until"] == noon
    two_hours = datetime.now(UTC) - timedelta(hours=2)
    assert abs(criteria(since="2h ago")["since"] - two_hours) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "given",
    [{"since": "yesterday"}, {"offset": "wrapper"}, {"offset": "w/0/x"}, {"offset": "w/0/1-"}],
)
def test_nonsense_is_wrong_usage(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        criteria(**given)


def test_hexdump_points_at_a_byte() -> None:
    lines = list(hexdump(bytes(range(32)), mark=25, label="here"))
    assert lines[0] == (
        "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|"
    )
    assert lines[1][lines[2].index("^^") :].startswith("19")
    assert lines[2].endswith("^^ here")


def test_hexdump_of_much_shows_the_beginning_and_the_place() -> None:
    lines = list(hexdump(bytes(100_000), mark=50_000))
    assert len(lines) < 40
    assert lines[-1].endswith("bytes more")
    shown = sum(16 for line in lines if line[:8].strip("0123456789abcdef") == "")
    skipped = sum(int(line.split()[1].replace(",", "")) for line in lines if line[:3] == "...")
    assert shown + skipped == 100_000


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xc3\xa4" * 100, {"bytes": 200, "kind": "text", "shown": "ä" * 100}),
        (b"a" + b"\xc3\xa4" * 100, {"bytes": 201, "kind": "text", "shown": "a" + "ä" * 99}),
        (b"\xc3\xa4\xc3", {"bytes": 3, "kind": "hex", "shown": "c3 a4 c3"}),
    ],
)
def test_text_is_text_where_the_limit_cuts_a_character(data: bytes, shown: dict[str, Any]) -> None:
    assert short_bytes(data) == shown


def test_hexdump_of_an_end_that_comes_too_early() -> None:
    assert list(hexdump(b"ab", mark=5))[-1] == "the data ends before byte 5"
    assert list(hexdump(b"")) == []


def test_nothing_to_replay_is_said_before_the_engine_is_asked(
    lake: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.cli.upkeep.dlq.pipeline_of", Mock(side_effect=AssertionError))
    assert cli("dlq", "replay", "--reason", "NOT_JSON").out == "0 to replay\n"
    assert cli("dlq", "replay", "--reason", "NOT_JSON", "--json").json["selected"] == 0
    # there is one: the pipeline is asked for
    assert cli("dlq", "replay", "--reason", "NULL_VALUE").code == 1
