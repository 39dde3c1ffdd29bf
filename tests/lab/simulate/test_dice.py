import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary_lab.simulate.dice import roll, rolls, sample, seed_for

seeds = st.integers(0, 2**64 - 1)


@given(seeds, st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_many_draws_are_the_same_as_one_by_one(seed: int, indexes: list[int]) -> None:
    together = rolls(seed, pa.array(indexes, pa.uint64())).to_pylist()
    assert together == [roll(seed, index) for index in indexes]


def test_draws_stay_the_same_for_ever() -> None:
    assert roll(0, 1) == 0xE220A8397B1DCDAF
    assert seed_for(999, "games") == seed_for(999, "games") != seed_for(999, "late")


@given(seeds, st.integers(1, 300), st.data())
def test_a_sample_has_no_number_twice(seed: int, population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    picked = sample(seed, population, count)
    assert len(set(picked)) == count
    assert all(0 <= number < population for number in picked)
    assert sample(seed, population, population)[:count] == picked


def test_draws_are_even() -> None:
    counts = [0] * 10
    for index in range(10_000):
        counts[roll(7, index) % 10] += 1
    assert min(counts) > 900
    assert max(counts) < 1100
