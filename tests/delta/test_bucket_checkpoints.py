"""Checkpoints in a bucket: of our own commits nothing is read again, and of others' everything."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.delta import commit, log_checkpoint
from distributary.model.manifest import StagedFile, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.publish.direct import DirectPublisher
from distributary.store import base
from distributary.store.base import REQUESTS, at, introduce
from tests.publish.staged import columns_like, mark, numbers, statistics
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def table(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(base, "_OPTIONS", {})
    introduce(f"s3://{BUCKET}", server.options)
    for module in (log_checkpoint, commit):
        monkeypatch.setattr(module, "OFTEN", 4)
    return f"s3://{BUCKET}/{unique('table')}"


def publish(publisher: DirectPublisher, path: str, batch: int, app: str = "ours") -> None:
    rows, data = numbers(batch), BytesIO()
    pq.write_table(rows, data)
    name = f"{app}-{batch}.parquet"
    at(path).write(name, data.getvalue())
    file = StagedFile(name, len(data.getvalue()), rows.num_rows, statistics(rows), {})
    plan = TablePlan("chess", Role.EACH, "chess", path, columns_like(rows))
    publisher.publish(TableEntry(plan, (file,), rows.num_rows), mark(batch, app=app))


def held(server: S3Server, path: str) -> list[int]:
    found: pa.Table = DeltaTable(path, storage_options=server.options).to_pyarrow_table()
    return sorted(found["n"].to_pylist())


def checkpoints(path: str) -> int:
    return sum(f.name.endswith(".checkpoint.parquet") for f in at(f"{path}/_delta_log").files())


def test_of_our_own_commits_nothing_is_read_again(server: S3Server, table: str) -> None:
    publisher = DirectPublisher()
    publish(publisher, table, 0)
    REQUESTS.clear()
    for batch in range(1, 13):
        publish(publisher, table, batch)
    assert checkpoints(table) in (3, 4)
    # of each checkpoint but the first, the one before
    assert REQUESTS["read"] <= 2 * checkpoints(table)
    assert held(server, table) == list(range(13))


def test_commits_of_others_between_ours_are_in_it(server: S3Server, table: str) -> None:
    publisher = DirectPublisher()
    for batch in range(12):
        publish(publisher, table, batch)
        if batch % 3 == 2:
            # a process of its own, which has seen nothing
            publish(DirectPublisher(), table, batch, app="others")
    assert checkpoints(table) >= 3
    assert held(server, table) == sorted([*range(12), 2, 5, 8, 11])
