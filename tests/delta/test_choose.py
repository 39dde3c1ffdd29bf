"""Which files are put together, and what is said of the result."""

from __future__ import annotations

import json
import math

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta.compact import Sizes, bins, in_order, joined, name_after
from distributary.delta.log import DataFile
from distributary.delta.log_checkpoint import parse_interval
from distributary.delta.parquet import statistics

SIZES = Sizes(target=1000, min_files=3)


def file(number: int, size: int, *, day: str | None = None, kind: str = "part") -> DataFile:
    stats = json.dumps({"numRecords": 1, "minValues": {"_batch": number}})
    name = f"{kind}-{number:05d}.parquet"
    return DataFile(name, name, size, 1000 + number, {"day": day}, stats)


FILES = st.lists(
    st.tuples(st.integers(1, 1500), st.sampled_from([None, "a"]), st.sampled_from(["part", "x"])),
    max_size=40,
).map(lambda all_: [file(n, s, day=d, kind=k) for n, (s, d, k) in enumerate(all_)])


@given(FILES)
def test_groups_are_neighbours_of_one_kind_and_size(files: list[DataFile]) -> None:
    found = bins(reversed(files), SIZES)
    for each in found:
        assert len(each) >= SIZES.min_files
        assert sum(f.size for f in each) <= SIZES.target
        assert len({(f.values["day"], f.path[:2]) for f in each}) == 1
        like = [f for f in files if (f.values, f.path[:2]) == (each[0].values, each[0].path[:2])]
        at = like.index(each[0])
        assert like[at : at + len(each)] == list(each)
    names = [f.path for each in found for f in each]
    assert len(names) == len(set(names))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400), st.integers(1, 40))
def test_rows_are_written_a_few_times_in_all(sizes: list[int], often: int) -> None:
    """Files of a batch each, put together again and again."""
    files: list[DataFile] = []
    written = 0
    for number, size in enumerate(sizes):
        files.append(file(number, size))
        if number % often:
            continue
        for each in bins(files, Sizes(10**6, 2)):
            total = sum(f.size for f in each)
            written += total
            at = files.index(each[0])
            files[at : at + len(each)] = [file(int(each[0].path[5:10]), total)]
    assert written <= sum(sizes) * (2 + math.log2(sum(sizes)))


def test_times_tell_the_order_where_batches_do_not() -> None:
    files = [file(3, 1), file(1, 1), DataFile("part-z", "part-z", 1, 1002, {}, None)]
    assert [f.path[5:10] for f in in_order(files)] == ["00001", "z", "00003"]
    assert [f.path[5:10] for f in in_order(files[:2])] == ["00001", "00003"]


def test_name_begins_and_sorts_like_the_first_one() -> None:
    once = name_after("day=a%2Fb/closed-7.parquet")
    again = name_after(once)
    assert once.startswith("day=a%2Fb/closed-7-c") and again.startswith("day=a%2Fb/closed-7-c")
    assert len(again) == len(once) and again != once


ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-5, 5),
        st.none() | st.sampled_from(["a", "é", "\U00020000", "long" * 20, ""]),
        st.none() | st.floats(),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.data())
def test_statistics_of_pieces_are_those_of_the_whole(
    rows: list[tuple[object, ...]], data: st.DataObject
) -> None:
    columns = [
        pa.array([row[n] for row in rows], t)
        for n, t in enumerate([pa.int64(), pa.string(), pa.float64()])
    ]
    table = pa.table(columns, names=["n", "text", "x"])
    cut = data.draw(st.integers(0, table.num_rows))
    pieces = [p for p in (table.slice(0, cut), table.slice(cut)) if p.num_rows]
    whole = json.loads(statistics(table))
    found = joined([json.loads(statistics(p)) for p in pieces])
    assert (found["numRecords"], found["nullCount"]) == (whole["numRecords"], whole["nullCount"])
    # a bound may be left out, but never be wrong
    for name, low in found["minValues"].items():
        assert (low, found["maxValues"][name]) == (
            whole["minValues"][name],
            whole["maxValues"][name],
        )


def test_intervals_of_table_properties() -> None:
    assert parse_interval("interval 1 days") == parse_interval("INTERVAL  24 hours")
    assert parse_interval("1 week 2 days") == parse_interval("interval 9 days")
    assert parse_interval(None) is None
    assert parse_interval("") is None
    assert parse_interval("interval 1 month") is None
