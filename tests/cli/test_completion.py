import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.cli import completion
from distributary.cli.completion import (
    complete_letters,
    complete_pipelines,
    complete_reasons,
    complete_tables,
)
from tests.cli.lake import make_lake

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


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were really read."""
    found: list[str] = []
    read = completion._read

    def noting(table: str, sql: str) -> list[str]:
        found.append(table)
        return read(table, sql)

    monkeypatch.setattr(completion, "_read", noting)
    return found


def test_a_second_tab_reads_nothing(own_folder: Path, reads: list[str]) -> None:
    make_lake(own_folder / "lake")
    for _ in range(3):
        assert complete_tables(context(), "sil") == ["silver_0", "silver_1"]
    assert len(reads) == 1
    # another question is not answered by what was read for the first
    assert complete_reasons(context(), "") == ["NULL_VALUE", "UNKNOWN_SCHEMA_ID"]
    assert len(reads) == 3


def test_what_was_written_since_is_read(own_folder: Path, reads: list[str]) -> None:
    make_lake(own_folder / "lake")
    ledger = str(own_folder / "lake" / LEDGER)
    complete_tables(context(), "")
    rows = DeltaTable(ledger).to_pyarrow_table().slice(0, 1)
    place = rows.schema.get_field_index("table")
    renamed = rows.set_column(place, "table", [["silver_new"]])
    write_deltalake(ledger, renamed.cast(rows.schema), mode="append")
    assert complete_tables(context(), "silver_n") == ["silver_new"]
    assert complete_tables(context(), "silver_n") == ["silver_new"]
    assert len(reads) == 2


def test_another_lake_in_the_same_place_is_read(own_folder: Path, reads: list[str]) -> None:
    for types, wanted in (("ab", 2), ("abc", 3), ("a", 1)):
        make_lake(own_folder / "lake", types=tuple(types))
        assert len(complete_tables(context(), "sil")) == wanted
        shutil.rmtree(own_folder / "lake")
        assert complete_tables(context(), "sil") == []


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"commit": null, "names": 7}'])
def test_what_is_remembered_may_be_damaged(own_folder: Path, content: bytes) -> None:
    make_lake(own_folder / "lake")
    assert len(complete_tables(context(), "sil")) == 2
    (kept,) = (own_folder.parent / "state" / "distributary" / "completion").iterdir()
    kept.write_bytes(content)
    assert len(complete_tables(context(), "sil")) == 2


def test_nothing_may_be_remembered_at_all(own_folder: Path) -> None:
    make_lake(own_folder / "lake")
    (own_folder.parent / "state").write_text("a file where a folder should be")
    for _ in range(2):
        assert len(complete_tables(context(), "sil")) == 2


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
    said = []
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.split() == ["silver_0", "silver_1"]
        said.append(ended.stderr.strip())
    assert said == ["imported deltalake", "imported"]
