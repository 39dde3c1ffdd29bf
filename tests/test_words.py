"""The check of the language in the code: what it counts, and that the code passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words

GOOD = '''
class Table:
    """A table."""

    def rows(self) -> int:
        """Return the number of rows."""
        count = 1
        return count
'''


def folder(place: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (place / f"{name}.py").write_text(text)
    return place


def test_the_code_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main([]) == 0, capsys.readouterr().out


def test_plain_words_pass(tmp_path: Path) -> None:
    counted = words.count(folder(tmp_path, a=GOOD))
    assert counted.problems() == []
    assert counted.functions == 1


def test_no_module_is_no_problem(tmp_path: Path) -> None:
    assert words.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Return the number of rows.", "How many rows there are."),
        ("Return the number of rows.", "Those of the table."),
        ("A table.", "A table, for whoever asks."),
        ("count", "told"),
    ],
)
def test_each_kind_of_finding_fails(tmp_path: Path, old: str, new: str) -> None:
    place = folder(tmp_path, a=GOOD.replace(old, new))
    assert len(words.count(place).problems()) == 1
    assert words.main([str(place)]) == 1


def test_a_parameter_counts_as_a_variable(tmp_path: Path) -> None:
    place = folder(tmp_path, a="def f(told: int) -> int:\n    return told\n")
    assert words.count(place).banned == ["a.py:1 told"]


def test_names_of_several_classes_are_counted_across_modules(tmp_path: Path) -> None:
    many = "\n".join(f"class C{n}: ..." for n in range(words.MOST_SHARED_NAMES))
    place = folder(tmp_path, a=many, b=many + "\nclass _Own: ...", c="class _Own: ...")
    assert words.count(place).problems() == []
    folder(place, d="class One: ...", e="class One: ...")
    counted = words.count(place)
    assert counted.shared_names[-1] == "One: d.py, e.py"
    assert len(counted.problems()) == 1
