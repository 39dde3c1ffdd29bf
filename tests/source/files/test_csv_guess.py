"""The form of CSV files is found by their beginning."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.source.files.csv_files import Dialect
from distributary.source.files.csv_guess import guess_dialect
from distributary.source.files.sample import sample_files
from tests.source.change_files import put


@pytest.mark.parametrize(
    ("text", "delimiter", "header"),
    [
        ("id,name\n1,a\n", ",", True),
        ('id;note\n1;"a, b, c"\n2;"d; e"\n', ";", True),
        ("id\tname\n1\ta\n", "\t", True),
        ("id|a\n1|2\n", "|", True),
        ("1;a;2,5\n2;b;3,5\n", ";", False),
        ("2026-01-02 10:00,a\n", ",", False),
        ("id,id\n1,2\n", ",", False),
        ("name\nanna\n", ",", True),
        ("17\n18\n", ",", False),
        ("a;b\n1;2\n3;", ";", True),
        ("", ",", True),
        ('a,"b\n', ",", True),
    ],
)
def test_forms(text: str, delimiter: str, header: bool) -> None:
    form = guess_dialect(text, Dialect())
    assert (form.delimiter, form.header) == (delimiter, header)


_WORD = st.text("abcxyz ", min_size=1, max_size=8)


@given(
    delimiter=st.sampled_from(",;\t|"),
    rows=st.integers(2, 5).flatmap(
        lambda width: st.lists(st.lists(_WORD, min_size=width, max_size=width), min_size=2)
    ),
)
def test_the_delimiter_of_words_is_found(delimiter: str, rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    assert guess_dialect(text.getvalue(), Dialect()).delimiter == delimiter


def test_a_sample_is_read_in_the_form_of_its_first_file(tmp_path: Path) -> None:
    put(tmp_path, "orders/a.csv", gzip.compress(b"1;a\n2;b\n"))
    sample = sample_files(str(tmp_path), {})
    assert sample.settings == {"format": "csv", "csv_header": False, "csv_delimiter": ";"}
    assert [record.value for record in sample.records if b"column_2" in record.value]
    put(tmp_path, "orders/a.csv", b"id,name\n1,a\n")
    assert sample_files(str(tmp_path), {}).settings == {"format": "csv"}
