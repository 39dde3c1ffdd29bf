"""The reference pages leave nothing out of what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

import distributary
from distributary.config.load import every_model, settings
from distributary.errors import ErrorCode
from distributary.model.deadletter import DEAD_LETTER_COLUMNS
from distributary.observe.metrics import CATALOGUE
from tests.cli.test_help import EVERY
from tools.docs import errors, ledger, metrics, python, reference
from tools.docs.commands import escaped, verbs
from tools.docs.repository import ROOT, pipes_in_code, relinked

PAGES = {f"reference/{name}": text for name, text in reference.pages().items()}


def test_the_pages_in_the_repository_are_those_of_the_code() -> None:
    kept = {path.name for path in reference.FOLDER.iterdir()}
    assert kept == {Path(name).name for name in PAGES}, "`make reference` writes the pages again"
    stale = [
        name
        for name, text in PAGES.items()
        if (reference.FOLDER / Path(name).name).read_text("utf-8") != text
    ]
    assert stale == [], "`make reference` writes the pages again"


def test_every_setting_has_a_row() -> None:
    page = PAGES["reference/settings.md"]
    missing = [
        f"{model.__name__}.{key}"
        for model in every_model()
        for key in settings((model,))
        if f"| `{key}` |" not in page
    ]
    assert missing == []


def test_every_command_has_a_section_with_its_options_and_examples() -> None:
    page = PAGES["reference/commands.md"]
    assert {verb.name for verb in verbs()} == EVERY.keys()
    for verb in verbs():
        section = page.partition(f"\n### {verb.name}\n")[2].partition("\n### ")[0]
        assert verb.examples
        assert all(f"$ {line}\n" in section for line in verb.examples)
        own = [p for p in verb.command.params if p.rich_help_panel != "Output" and not p.hidden]
        named = [max(p.opts, key=len) for p in own if p.param_type_name == "option"]
        assert [option for option in named if option not in section] == [], verb.name


def test_every_metric_has_a_row() -> None:
    page = PAGES["reference/metrics.md"]
    assert [m.name for m in CATALOGUE if f"| `{m.name}` |" not in page] == []
    assert [name for m in CATALOGUE for name in metrics.series(m) if f"`{name}`" not in page] == []


def test_every_code_and_every_exception_has_a_row() -> None:
    page = PAGES["reference/errors.md"]
    assert [code for code in ErrorCode if f"(../errors.md#{code})" not in page] == []
    assert [c.__name__ for c in errors.exceptions() if f"| `{c.__name__}` |" not in page] == []


def test_reasons_of_dead_letters_are_those_of_the_page_of_codes() -> None:
    text = (ROOT / "docs" / "errors.md").read_text("utf-8")
    section = text.partition("## A record")[2].partition("\n## ")[0]
    assert {code for code in ErrorCode if f'"{code}"' in section} == errors.reasons()


def test_every_column_of_the_ledger_has_a_row_and_says_what_it_is() -> None:
    page = PAGES["reference/ledger.md"]
    names = {field.name for schema in ledger.LEDGER.values() for field in schema}
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert [c.name for c in DEAD_LETTER_COLUMNS if f"| `{c.name}` |" not in page] == []
    assert "| |\n" not in page.replace("|---|---|---|", "").replace("| column | type | |", "")


def test_every_exit_code_is_on_its_page() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text("utf-8")
    codes = {c.exit_code for c in errors.exceptions()} | {0, 130, 143}
    assert [code for code in sorted(codes) if f"| {code} |" not in page] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a `*b*` c_d", r"a `*b*` c\_d"),
        ("<img src=x>", r"\<img src=x\>"),
        ("a|b", r"a\|b"),
        ("half ` open", r"half \` open"),
        ("", ""),
    ],
)
def test_help_is_text_and_no_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("up.md", "[a](../ARCHITECTURE.md#layers)", "[a](project/architecture.md#layers)"),
        ("howto/tune.md", "[a](../../README.md)", "[a](../project/readme.md)"),
        ("project/readme.md", "[a](docs/kafka.md)", "[a](../kafka.md)"),
        ("project/readme.md", "[a\nb](docs/kafka.md)", "[a\nb](../kafka.md)"),
        ("project/readme.md", "[a](LICENSE)", "a"),
        ("project/benchmarks.md", "[a](../ARCHITECTURE.md)", "[a](architecture.md)"),
        ("up.md", "[a](kafka.md#positions)", "[a](kafka.md#positions)"),
        ("up.md", "[a](nothing.md)", "[a](nothing.md)"),
        ("up.md", "[a](../nothing.md)", "[a](../nothing.md)"),
        ("up.md", "[a](#here)", "[a](#here)"),
        ("up.md", "[a](https://example.com/x.md)", "[a](https://example.com/x.md)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    page: str, link: str, becomes: str
) -> None:
    assert relinked(link, page=page) == becomes


def test_a_pipe_in_code_is_shown_as_one() -> None:
    assert pipes_in_code("| `a\\|b` | c \\| d |\n`e\\|f`") == "| `a|b` | c \\| d |\n`e\\|f`"


def test_every_public_name_of_the_python_api_is_there() -> None:
    page = PAGES["reference/python.md"]
    for module, found in python.classes().items():
        assert f"## {module}\n" in page
        for cls in found:
            assert f"### {cls.__name__}\n" in page
    named = {"Lake", "Pipeline", "RunSummary"}
    assert named == set(distributary.__all__) - {"DistributaryError", "ErrorCode", "__version__"}
    for member in ("to_spark", "changes_since", "from_dict", "batches", "frame", "rows"):
        assert f"| `{member}" in page
    # a member without a sentence says nothing
    methods = [line for line in page.splitlines() if line.startswith("| `") and "(" in line]
    assert methods and all(line.count("|") >= 3 and line.split("|")[2].strip() for line in methods)
