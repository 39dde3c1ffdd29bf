from hypothesis import given
from hypothesis import strategies as st

from distributary.run.planner import spread_tables


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 10_000), max_size=40),
    st.integers(1, 16),
)
def test_every_table_has_tasks_and_no_task_is_overloaded(
    records: dict[str, int], buckets: int
) -> None:
    spread = spread_tables(records, buckets)
    assert set(spread) == set(records)
    load = [0.0] * buckets
    for name, targets in spread.items():
        assert targets and len(set(targets)) == len(targets)
        assert all(0 <= bucket < buckets for bucket in targets)
        for bucket in targets:
            load[bucket] += records[name] / len(targets)
    # greedy: the fullest task is above the mean by at most what one table may put on one task
    largest = max((records[n] / len(t) for n, t in spread.items()), default=0)
    assert max(load) <= sum(records.values()) / buckets + largest + 1e-6


def test_a_dominating_table_is_shared_by_several_tasks() -> None:
    spread = spread_tables({"big": 900, "a": 50, "b": 50}, 4)
    assert len(spread["big"]) == 4
