from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.model.facts import KeyRange, SortedRun, decode, encode
from distributary.model.routing import Rejected, Route, RouteKey
from distributary.stage.exchange import Load, spread

TYPES = 6
ROUTES: dict[RouteKey, Route | Rejected] = {
    RouteKey(f"t{i}", version): Route(f"silver_t{i}", f"t{i}", version, "M")
    for i in range(TYPES)
    for version in (1, 2)
}
ROUTES[RouteKey("bad", 9)] = Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, "no such schema")


def run_of(path: str, counts: dict[RouteKey, int]) -> SortedRun:
    ranges, start = [], 0
    for key, count in counts.items():
        ranges.append(KeyRange(key, start, count, start))
        start += count
    return SortedRun(path, tuple(ranges))


def landed(loads: list[Load]) -> Counter[tuple[str, int]]:
    """Every row of every run that some task lands."""
    rows: Counter[tuple[str, int]] = Counter()
    for load in loads:
        for shares in load.tables.values():
            for share in shares:
                for one in share.slices:
                    rows.update((one.path, row) for row in range(one.start, one.start + one.rows))
    return rows


counts = st.dictionaries(st.sampled_from(sorted(ROUTES)), st.integers(1, 12_000), min_size=1)


@given(st.lists(counts, min_size=1, max_size=3), st.integers(1, 5))
def test_every_row_is_landed_once(per_run: list[dict[RouteKey, int]], tasks: int) -> None:
    runs = [run_of(f"run{i}", one) for i, one in enumerate(per_run)]
    loads = spread(runs, ["letters"], ROUTES, tasks=tasks)
    assert 1 <= len(loads) <= tasks
    expected = Counter(
        {(f"run{i}", row): 1 for i, one in enumerate(per_run) for row in range(sum(one.values()))}
    )
    assert landed(loads) == expected
    assert [path for load in loads for path in load.letters] == ["letters"]


def test_records_of_a_key_go_to_the_table_of_its_route() -> None:
    runs = [run_of("run", dict.fromkeys(ROUTES, 10))]
    for load in spread(runs, [], ROUTES, tasks=3):
        for name, shares in load.tables.items():
            for share in shares:
                route = ROUTES[share.key]
                assert (route.table if isinstance(route, Route) else "") == name


def test_a_light_table_is_one_task_s_and_a_heavy_one_is_shared() -> None:
    heavy, light = RouteKey("t0", 1), RouteKey("t1", 1)
    loads = spread([run_of("run", {heavy: 100_000, light: 10})], [], ROUTES, tasks=4)
    assert sum("silver_t0" in load.tables for load in loads) == 4
    assert sum("silver_t1" in load.tables for load in loads) == 1


def test_nothing_to_do_is_no_task() -> None:
    assert spread([], [], ROUTES, tasks=4) == []


def test_runs_survive_the_way_to_the_driver() -> None:

    run = run_of("a/b.arrow", {RouteKey("t0", 1, (0, 1), "guid"): 3, RouteKey("t1", 2): 4})
    assert decode(*encode(run)) == run
