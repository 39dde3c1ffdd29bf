import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

import pytest
import typer

from distributary.cli.command.verb import DEPLOY, FIX, LOOK, RUN, START
from distributary.cli.command_line import PLUGGED, VERBS, application
from tests.cli.conftest import Cli


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that can be typed, with what stands before it."""
    node = typer.main.get_command(application()) if command is None else command
    below = getattr(node, "commands", None)
    if below is None:
        yield " ".join(path), node
        return
    for name, each in below.items():
        yield from commands(each, (*path, name))


EVERY = dict(commands())


def in_new_process(code: str) -> None:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def examples(command: Any) -> list[str]:
    return re.findall(r"^\s+(distributary .*)$", command.epilog or "", re.MULTILINE)


def test_every_verb_is_found_where_the_program_looks_for_it() -> None:
    first = {name.partition(" ")[0] for name in EVERY}
    plugged = {point.name for point in entry_points(group=PLUGGED)}
    assert {verb for verbs in VERBS.values() for verb in verbs} | plugged == first
    for verb in first:
        node = typer.main.get_command(application(verb))
        assert {name for name in EVERY if name.partition(" ")[0] == verb} <= dict(
            commands(node)
        ).keys()


@pytest.mark.parametrize("line", [["--version"], ["status", "--help"], ["run", "--help"]])
def test_only_commands_of_other_packages_read_entry_points(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    def read(**criteria: str) -> None:
        raise AssertionError("entry points were read")

    monkeypatch.setattr("importlib.metadata.entry_points", read)
    assert cli(*line).code == 0


def test_a_command_of_a_package_that_is_broken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "distributary_nowhere.commands:app", PLUGGED)
    points = EntryPoints([*entry_points(group=PLUGGED), broken])
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)
    result = cli("broken", "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "CONFIG_INVALID")
    assert broken.value in result.json["error"]["where"]
    assert cli("--help").code == 0
    assert "demo" in cli("--help").out and "broken" not in cli("--help").out


@pytest.mark.parametrize("name", EVERY)
def test_every_command_has_an_example_of_itself(name: str) -> None:
    found = examples(EVERY[name])
    assert found
    assert all(line.startswith(f"distributary {name}") for line in found)


@pytest.mark.parametrize("name", EVERY)
def test_every_command_prints_json_on_request(name: str) -> None:
    options = {option for param in EVERY[name].params for option in param.opts}
    assert {"--json", "--quiet", "-q", "--verbose", "-v", "--debug"} <= options


@pytest.mark.parametrize("name", EVERY)
def test_every_command_explains_each_parameter(name: str, cli: Cli) -> None:
    assert [p.name for p in EVERY[name].params if not p.help] == []
    result = cli(*name.split(), "--help")
    assert result.code == 0
    assert all(line in result.out for line in examples(EVERY[name]))
    # in words of people, not of Python
    assert not re.search(r"\[\[|<(str|int|float|list)\b", result.out)


def test_every_command_that_takes_away_can_be_tried(cli: Cli) -> None:
    fixing = {"dlq replay", "dlq discard", "resume", "rebuild", "reset", "clean", "schema forget"}
    for name in fixing | {"install", "uninstall", "package", "grants apply"}:
        options = {option for param in EVERY[name].params for option in param.opts}
        assert "--dry-run" in options, name


def test_first_page_has_groups_and_exit_codes(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    groups = (START, RUN, LOOK, FIX, DEPLOY)
    assert [line for line in groups if f"\n{line}:\n" not in result.out] == []
    for code in ("0", "1", "2", "75", "130", "143"):
        assert re.search(rf"^ +{code} +\w", result.out, re.MULTILINE)
    # one line each: nothing is cut off
    assert "..." not in result.out.split("Options:")[0].split("\n", 1)[1]


@pytest.mark.parametrize(
    "group", [(), ("dev",), ("dlq",), ("schema",), ("produce",), ("alerts",), ("grants",)]
)
def test_a_group_alone_shows_its_help(group: tuple[str, ...], cli: Cli) -> None:
    assert cli(*group).out == cli(*group, "--help").out
    assert cli(*group).code == 0


@pytest.mark.parametrize("group", sorted({name.split()[0] for name in EVERY if " " in name}))
def test_the_page_of_a_group_has_whole_sentences_and_an_example_of_each(
    group: str, cli: Cli
) -> None:
    page = cli(group, "--help").out
    assert "..." not in page.split("\n", 1)[1]
    within = [name for name in EVERY if name.startswith(f"{group} ")]
    assert [name for name in within if examples(EVERY[name])[0] not in page] == []


def test_help_and_completion_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from distributary.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'pyarrow', 'pyspark', 'deltalake', 'rich', 'pandas', 'numpy', 'humanize'}\n"
        "found = (heavy | {'pydantic'}) & set(sys.modules)\n"
        "assert main(['dlq', 'replay', '--help']) == 0\n"
        "sys.exit(' '.join(found | heavy & set(sys.modules)) or 0)\n"
    )
    in_new_process(code)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, distributary\n"
        "assert distributary.__all__ == sorted(distributary.__all__)\n"
        "distributary.ErrorCode, distributary.DistributaryError\n"
        "sys.exit(' '.join({'pyarrow', 'pyspark', 'pydantic'} & set(sys.modules)) or 0)\n"
    )
    in_new_process(code)


def test_public_names() -> None:
    import distributary

    assert distributary.__all__ == [
        "DistributaryError",
        "ErrorCode",
        "Lake",
        "Pipeline",
        "RunSummary",
        "__version__",
    ]
    assert [name for name in distributary.__all__ if not hasattr(distributary, name)] == []
    with pytest.raises(AttributeError):
        distributary.nothing_like_it  # noqa: B018


def test_version_names_what_a_bug_report_needs(cli: Cli) -> None:
    result = cli("--version")
    assert result.code == 0
    found = {line.split()[0] for line in result.out.splitlines()}
    assert {"distributary", "Python", "Java", "Spark", "Delta", "platform"} <= found


@pytest.mark.parametrize("line", [["stats"], ["dlq", "show"], ["run", "--nothing", "x.yaml"]])
def test_wrong_usage_is_one_block(line: list[str], cli: Cli) -> None:
    result = cli(*line)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("CONFIG_INVALID  ")
    assert "--help" in result.err
    document = cli(*line, "--json")
    assert document.code == 2
    assert document.json["error"]["code"] == "CONFIG_INVALID"
    assert document.json["version"] == 1
