"""The figures in the documents are those of the run that is kept."""

from __future__ import annotations

import re

import pytest

from benchmarks.markdown import DOCUMENTS, ROOT, blocks, kept, written
from benchmarks.measure import better


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_says_what_the_run_found(name: str) -> None:
    text = (ROOT / name).read_text()
    assert re.search("<!-- bench: [a-z]+ -->", text)
    assert written(text, kept(name)) == text, (
        "python -m benchmarks.markdown writes the figures again"
    )


def test_a_run_of_some_suites_has_their_tables_only() -> None:
    row = {"suite": "age", "case": "100", "seconds_per_batch": 1.0, "publish_seconds": 0.5}
    about = {"machine": "m", "date": "2026-11-15", "commit": "c", "records_per_batch": 1}
    known = blocks({**about, "rows": [row], "ratios": {"seconds_1000_vs_10": 2}})
    assert set(known) == {"source", "age", "aims"}
    assert known["age"].endswith("| 100 | 1.00 | 0.50 |")


def test_what_is_typed_into_a_block_is_noticed() -> None:
    text = "a\n<!-- bench: source -->\n1,000,000 times\n<!-- /bench -->\nb\n"
    assert written(text, {"source": "as it is"}) == (
        "a\n<!-- bench: source -->\nas it is\n<!-- /bench -->\nb\n"
    )


def test_the_faster_of_two_rounds_counts_and_both_are_kept() -> None:
    slow = {"case": "direct", "seconds_per_batch": 3.0, "rows_per_second": 1, "driver_bytes": 5}
    fast = {"case": "direct", "seconds_per_batch": 2.0, "rows_per_second": 2, "driver_bytes": 4}
    for first, second in ((slow, fast), (fast, slow)):
        rounds = [first["seconds_per_batch"], second["seconds_per_batch"]]
        assert better(first, second) == {**fast, "driver_bytes": 5, "rounds": rounds}
