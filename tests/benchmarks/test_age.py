"""Ledgers of many batches, and the questions that the suite asks them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.age import _ledger_case
from benchmarks.order import Order


def test_every_question_is_asked_of_a_grown_ledger(tmp_path: Path) -> None:
    order = Order(tables=2, records=0, batches=0, warm=0, rate=0, seconds=0.0, folder=str(tmp_path))
    row = _ledger_case(40)(order)
    assert row["ledger_batches"] == 40
    for question in ("status", "trace", "start", "page"):
        assert row[f"{question}_cpu_seconds"] > 0, question
