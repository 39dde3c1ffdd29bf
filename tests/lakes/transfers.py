"""A writer of bank transfers over many tables, to be killed: each transfer is a row in two tables.

Run as a program, it commits and settles batches as a run does, without Spark, until it is ended:

    python -m tests.lakes.transfers FOLDER TABLES
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from distributary.delta.parquet import write_file
from distributary.model.manifest import Counts, SourceRange, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.ledger.recording import BatchTimes
from tests.lakes.settled import SettledLake

TRANSFERS = 8
"""In a batch."""
_BETWEEN_COMMITS = 0.003
"""Seconds: a thousand tables take seconds, and these are few."""


def account(number: int) -> str:
    return f"account_{number:02}"


def balances(batch: int, tables: int) -> dict[str, list[int]]:
    """The rows of a batch, the same whenever it is asked for; their sum is 0."""
    rows: dict[str, list[int]] = {}
    if batch == 0:
        return {account(n): [0] for n in range(tables)}
    chance = random.Random(batch)
    for _ in range(TRANSFERS):
        giver, taker = chance.sample(range(tables), 2)
        amount = chance.randint(1, 1000)
        rows.setdefault(account(giver), []).append(-amount)
        rows.setdefault(account(taker), []).append(amount)
    return rows


class Bank(SettledLake):
    """A lake of accounts. A batch that was begun by a process that was killed is finished."""

    def transfer(self, tables: int) -> None:
        number = self.ledger.newest_settled(f"distributary/{self.name}/{self.life}/stream") + 1
        rows = balances(number, tables)
        entries = [self._account(name, amounts, number) for name, amounts in rows.items()]
        count = sum(map(len, rows.values()))
        covered = SourceRange("transfers", 0, number * 100, number * 100 + count, count)
        manifest = self._manifest(number, entries, (covered,), Counts(count, count))
        self._done(manifest)

    def _account(self, name: str, amounts: list[int], number: int) -> TableEntry:
        rows = pa.table(
            {
                "amount": pa.array(amounts, pa.int64()),
                "_batch": pa.array([number] * len(amounts), pa.int64()),
            }
        )
        columns = tuple(Column(field.name, field.type) for field in rows.schema)
        path = str(self.lake / name)
        (self.lake / name).mkdir(exist_ok=True)
        plan = TablePlan(name, Role.EACH, name, path, columns)
        # a name of its own: the file of a process that was killed may be part of the table
        staged = write_file(rows, path, plan.staged(f"part-{number}-{uuid.uuid4().hex}.parquet"))
        time.sleep(_BETWEEN_COMMITS)
        return TableEntry(plan, (staged,), len(amounts))

    def settle(self, manifest, results=None, *, parked=()) -> None:
        now = datetime.now(UTC)
        times = BatchTimes(now, finished_at=now)
        self.ledger.record(manifest, results or [], times=times, counts=manifest.counts)

    def publisher(self, role: Role = Role.EACH):
        time.sleep(_BETWEEN_COMMITS)
        return super().publisher(role)


if __name__ == "__main__":
    bank = Bank(Path(sys.argv[1]), name="bank", bronze=False)
    while True:
        bank.transfer(int(sys.argv[2]))
