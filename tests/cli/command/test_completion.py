import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributary.cli.command.verb import (
    complete_letters,
    complete_pipelines,
    complete_reasons,
    complete_tables,
)
from tests.lakes.written import make_lake

LEDGER = "_distributary/ledger/tables"


def context(**params: object) -> Any:
    return SimpleNamespace(params=params)


def test_names_of_tables_reasons_and_pipelines(own_folder: Path) -> None:
    make_lake(own_folder / "lake")
    assert complete_tables(context(), "sil") == ["silver_0", "silver_1"]
    assert complete_reasons(context(), "") == ["NULL_VALUE", "UNKNOWN_SCHEMA_ID"]
    assert complete_pipelines(context(), "g") == ["games"]
    assert len(ids := complete_letters(context(), "")) == 3
    assert complete_letters(context(), ids[1]) == [ids[1]]


def test_nothing_is_ever_raised(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete_tables(context(), "") == []
    assert "UNKNOWN_SCHEMA_ID" in complete_reasons(context(), "UNK")
    (own_folder / "lake" / "_distributary" / "ledger" / "tables").mkdir(parents=True)
    assert complete_tables(context(lake="lake"), "") == []
    assert complete_pipelines(context(lake="/nowhere"), "") == []
    monkeypatch.setenv("DISTRIBUTARY_LAKE", "s3://nowhere/lake")
    assert complete_tables(context(), "") == []


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("schema show silver_", ["silver_0", "silver_1"]),
        ("resume silver_", ["silver_0", "silver_1"]),
        ("dlq replay --reason UNK", ["UNKNOWN_SCHEMA_ID"]),
        ("dl", ["dlq"]),
    ],
)
def test_the_shell_gets_them(own_folder: Path, typed: str, wanted: list[str]) -> None:
    make_lake(own_folder / "lake")
    words = f"distributary {typed}"
    environment = {
        **os.environ,
        "_DISTRIBUTARY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "distributary"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == wanted, ended.stderr


def test_a_tab_imports_nothing_that_takes_long(own_folder: Path) -> None:
    make_lake(own_folder / "lake")
    code = (
        "import contextlib, sys\n"
        "from distributary.cli import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main([])\n"
        "heavy = {'pyspark', 'pyarrow', 'pydantic', 'rich', 'deltalake'} & sys.modules.keys()\n"
        "print('imported', *sorted(heavy), file=sys.stderr)\n"
    )
    environment = {
        **os.environ,
        "_DISTRIBUTARY_COMPLETE": "complete_bash",
        "COMP_WORDS": "distributary schema show --lake lake sil",
        "COMP_CWORD": "5",
    }
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["silver_0", "silver_1"]
    assert ended.stderr.strip() == "imported deltalake"
