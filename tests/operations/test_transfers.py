"""Bank transfers over many tables: at a cut no sum is ever wrong, at newest versions some are."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from distributary import Lake
from distributary.config.lake import Maintain
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from tests.docs.pages import ROOT
from tests.lakes.transfers import Bank, account

KILLS = int(os.environ.get("CUT_KILLS", "20"))
"""The kills of the longest test: CUT_KILLS=200 takes an hour."""


@dataclass
class Counted:
    """How many sums were read, and which of them were wrong."""

    reads: int = 0
    wrong: list[object] = field(default_factory=list)

    def add(self, total: int, what: object) -> None:
        self.reads += 1
        if total != 0:
            self.wrong.append((what, total))


def at_the_cut(lake: Lake, tables: int) -> int:
    every = " union all ".join(f"select amount from {account(n)}" for n in range(tables))
    return int(lake.query(f"select sum(amount) s from ({every})")["s"][0].as_py())


def at_newest_versions(lake: Lake, tables: int) -> int:
    paths = (f"{lake.path}/{account(n)}" for n in range(tables))
    return sum(sum(DeltaTable(p).to_pyarrow_table()["amount"].to_pylist()) for p in paths)


def summed(frames: Iterator[DataFrame]) -> int:
    both = reduce(DataFrame.unionByName, (frame.select("amount") for frame in frames))
    return int(both.agg({"amount": "sum"}).first()[0])


@dataclass
class SparkSums:
    """The same sums by Spark, of all tables in one statement."""

    spark: SparkSession
    tables: int
    cuts: Counted = field(default_factory=Counted)
    newest: Counted = field(default_factory=Counted)

    def read(self, lake: Lake) -> None:
        cut = lake.at(lake.cuts(1)[0].batch)
        frames = (cut[account(n)].to_spark(self.spark) for n in range(self.tables))
        self.cuts.add(summed(frames), "newest cut")
        paths = (f"{lake.path}/{account(n)}" for n in range(self.tables))
        loaded = (self.spark.read.format("delta").load(path) for path in paths)
        self.newest.add(summed(loaded), "newest")


@contextmanager
def repeated(work, ended: threading.Event) -> Iterator[None]:
    """Do something again and again beside the block; what it raises, the block does."""
    failures: list[BaseException] = []

    def do() -> None:
        try:
            while not ended.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if failures:
            raise failures[0]


def shown(
    folder: Path, *, tables: int, kills: int, spark: SparkSums | None = None
) -> tuple[Counted, Counted, Counted, int]:
    bank = Bank(folder, name="bank", bronze=False)
    bank.transfer(tables)
    lake = Lake(bank.lake)
    newest, cuts, older = Counted(), Counted(), Counted()
    chance = random.Random(7)
    settings = Maintain.model_validate(
        {"optimize": {"min_files": 3}, "checkpoint": {"every": 5}, "cuts": {"last": 20}}
    )

    def maintained() -> None:
        steps = [UpkeepStep.OPTIMIZE, UpkeepStep.CHECKPOINT, UpkeepStep.VACUUM]
        jobs = jobs_of(str(bank.lake))
        maintain(str(bank.lake), jobs, Wishes(settings, steps, pipeline="bank"), whole_lake=False)

    def read_cut() -> None:
        cuts.add(at_the_cut(lake, tables), "newest cut")
        batch = chance.choice(lake.cuts(20)).batch
        older.add(at_the_cut(lake.at(batch), tables), batch)

    ended = threading.Event()
    works: list[Callable[[], None]] = [maintained, read_cut]
    works.append(lambda: newest.add(at_newest_versions(lake, tables), "newest"))
    if spark is not None:
        works.append(lambda: spark.read(lake))
    with ExitStack() as stack:
        for work in works:
            stack.enter_context(repeated(work, ended))
        for number in range(kills):
            if number and number % 10 == 0:
                reads = " ".join(f"{c.reads}/{len(c.wrong)}" for c in (cuts, older, newest))
                print(f"{number} kills, sums/wrong at cuts, older, newest: {reads}", flush=True)
            command = [sys.executable, "-m", "tests.lakes.transfers", str(folder), str(tables)]
            before = lake.cuts(1)[0].batch
            with subprocess.Popen(command, cwd=ROOT) as writer:
                while lake.cuts(1)[0].batch == before and writer.poll() is None:
                    time.sleep(0.1)
                time.sleep(chance.uniform(0.0, 2.0))
                assert writer.poll() is None
                writer.send_signal(signal.SIGKILL)
    return cuts, older, newest, lake.cuts(1)[0].batch


@pytest.mark.slow
@pytest.mark.spark
def test_no_sum_at_a_cut_is_ever_wrong(tmp_path: Path, spark: SparkSession) -> None:
    sums = SparkSums(spark, tables=50)
    cuts, older, newest, batches = shown(tmp_path, tables=50, kills=KILLS, spark=sums)
    print(f"{batches} batches, {KILLS} kills")
    read = {"newest cut": cuts, "older cuts": older, "newest versions": newest}
    read |= {"newest cut by Spark": sums.cuts, "newest versions by Spark": sums.newest}
    for what, counted in read.items():
        print(f"{what}: {counted.reads} sums, {len(counted.wrong)} wrong")
        assert counted.reads, what
    assert cuts.wrong == older.wrong == sums.cuts.wrong == []


def test_a_few_kills_of_a_writer_of_few_tables(tmp_path: Path) -> None:
    cuts, older, _, batches = shown(tmp_path, tables=6, kills=2)
    assert cuts.reads and older.reads and batches
    assert cuts.wrong == older.wrong == []
