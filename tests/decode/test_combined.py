"""Rows by the combination of their values, however many combinations there could be."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode import base
from distributary.decode.base import coded, combined

ROWS = st.lists(st.tuples(*[st.sampled_from([None, "", "a", "b", "c"])] * 4), max_size=30)


@pytest.mark.parametrize("most", [2**40, 6])
@given(rows=ROWS)
def test_one_number_for_each_combination(most: int, rows: list[tuple[str | None, ...]]) -> None:
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_MOST_COMBINATIONS", most)
        codes, chosen = combined(map(coded, columns), len(rows))
    assert {rows[place] for place in chosen} == set(rows) and len(chosen) == len(set(rows))
    assert [rows[chosen[code]] for code in codes.tolist()] == rows
