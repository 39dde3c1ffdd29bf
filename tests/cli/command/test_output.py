import io
import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.cli.command.output import (
    Output,
    Paper,
    brief,
    counted,
    duration,
    number,
    since,
    spelled,
    styled,
    tally,
)
from distributary.model.names import one_line
from distributary.observe.log_format import cut, listed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_foreign_text_cannot_command_a_terminal(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert one_line(shown) == shown


@given(st.text())
def test_a_line_stays_one_line(text: str) -> None:
    paper = Paper(io.StringIO())
    paper.line("before ", styled(text, "bold"), text)
    drawn = paper.console.file.getvalue()
    assert drawn.count("\n") == 1
    assert drawn[:-1].isprintable()


def test_escapes_are_readable() -> None:
    assert one_line("a\x1b[31m\n\u202eb\ud800") == "a\\x1b[31m\\n\\u202eb\\ud800"
    assert one_line("größe 漢字") == "größe 漢字"


def test_markup_and_emoji_names_are_text() -> None:
    stream = io.StringIO()
    paper = Paper(stream)
    paper.line("[bold]x[/bold] :smile:")
    paper.table(("[red]A",), [("[blink]v",)], indent=0)
    assert stream.getvalue() == "[bold]x[/bold] :smile:\n[red]A\n[blink]v\n"


def test_a_notebook_shows_text_and_no_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    paper = Paper(io.StringIO())
    paper.line("a")
    assert not paper.console.is_jupyter
    assert paper.console.file.getvalue() == "a\n"


def test_a_pipe_gets_whole_lines_without_padding() -> None:
    stream = io.StringIO()
    Paper(stream).table(("A", "B>"), [("x" * 300, "1"), ("y", "")])
    lines = stream.getvalue().splitlines()
    assert lines[1] == f"  {'x' * 300}  1"
    assert lines[2] == "  y"


def test_what_goes_on_stands_under_its_beginning_and_paths_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    stream, path = Terminal(), "/" + "x" * 60
    Paper(stream).row("log", styled(f"seven words of text, and then {path} end", ""), width=6)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert drawn.splitlines() == [
        "  log   seven words of text, and then",
        f"        {path}",
        "        end",
    ]


@given(st.text())
def test_a_row_is_printable(text: str) -> None:
    paper = Paper(io.StringIO())
    paper.row("seen", text)
    drawn = paper.console.file.getvalue()
    assert drawn.count("\n") == bool(text) and drawn.rstrip("\n").isprintable()


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_where_colour_is_not_wanted(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert Paper(Terminal()).fancy
    monkeypatch.setenv(*variable)
    stream = Terminal()
    paper = Paper(stream)
    assert not paper.fancy
    paper.line(styled("x", "bold red"))
    assert stream.getvalue() == "x\n"


def test_a_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    Paper(stream).line(styled("x", "bold red"))
    assert "\x1b[" in stream.getvalue()


def test_json_is_one_document_with_a_version() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(as_json=True, stdout=stdout, stderr=stderr)
    output.warn("careful")
    output.note("working")
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    output.show({"at": at, "n": 10_003, "b": b"\xff", "version": 9}, lambda paper: None)
    document = json.loads(stdout.getvalue())
    assert document == {"version": 1, "at": "2026-01-31T12:00:00.000Z", "n": 10_003, "b": "ff"}
    assert stderr.getvalue() == "warning: careful\nworking\n"


def test_quiet_prints_errors_only() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(verbosity=-1, stdout=stdout, stderr=stderr)
    output.note("a")
    output.step("b")
    output.warn("c")
    output.show({}, lambda paper: paper.line("d"))
    assert stdout.getvalue() + stderr.getvalue() == ""
    output.show_error({}, lambda paper: paper.line("wrong"))
    assert stderr.getvalue() == "wrong\n"


def test_steps_need_a_flag() -> None:
    for verbosity, said in ((0, ""), (1, "b\n")):
        stderr = io.StringIO()
        Output(verbosity=verbosity, stdout=io.StringIO(), stderr=stderr).step("b")
        assert stderr.getvalue() == said


def test_secrets_are_hidden_in_what_is_not_data() -> None:
    stderr = io.StringIO()
    output = Output(stdout=io.StringIO(), stderr=stderr)
    output.mask = lambda text: text.replace("hunter2", "***")
    output.note("password hunter2")
    output.warn("hunter2")
    assert "hunter2" not in stderr.getvalue()


def test_words_for_people() -> None:
    assert number(10_003) == "10,003"
    assert number(None) == duration(None) == since(None) == "-"
    assert counted(1, "table") == "1 table"
    assert counted(2_000, "batch", "batches") == "2,000 batches"
    assert duration(0.44) == "0.4 s"
    assert duration(125) == "2 minutes and 5 seconds"
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert since(datetime(2026, 1, 31, 11, 57, tzinfo=UTC), now=now) == "3 minutes ago"
    assert cut("abcdef", 4) == "abc…"
    assert listed(map(str, range(9)), most=2) == "0, 1 and 7 more"
    assert tally({"a": 1, "b": 12}) == "b 12, a 1"
    times = (None, 0.04, 88, 119.9, 125, 7_300, 80_000, 900_000)
    words = ["-", "0.0 s", "88 s", "120 s", "2.1 min", "2.0 h", "22 h", "10 d"]
    assert [brief(each) for each in times] == words


@pytest.mark.parametrize(
    ("type", "words"),
    [
        ('["shop","","orders"]', "shop.orders"),
        ('["","public","a.b"]', "public.a.b"),
        ("chess", "chess"),
        ("[not json", "[not json"),
        ('["a"]', '["a"]'),
    ],
)
def test_the_table_of_a_source_is_spelled_as_people_do(type: str, words: str) -> None:
    assert spelled(type) == words


def test_a_narrow_terminal_still_shows_what_each_line_is_about() -> None:
    paper = Paper(io.StringIO())
    paper.console.width = 50
    name = "shop_customer_orders"
    paper.table(("TABLE", "ROWS", "TYPE"), [(name, "1,000,000", "a type with a long name")])
    text = paper.console.file.getvalue()
    assert name in text and "1,000,000" in text
    assert max(map(len, text.splitlines())) <= 50
