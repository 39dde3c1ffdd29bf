"""A commit that fails is tried again before its table is parked, and nobody else waits for it."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributary.config.runtime import Run
from distributary.engine.context import PublishState, RunContext, RunReports
from distributary.engine.steps import commits, merges
from distributary.errors import ErrorCode, LakeUnavailableError, PublishError
from distributary.model.manifest import Counts, Manifest, Mark, TableEntry
from distributary.model.table import Role
from distributary.observe.events import EventBus, TableParked
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import parked
from tests.publish.memory import MemoryPublisher
from tests.publish.staged import LIFE, batch_of, numbers


class _Failing(MemoryPublisher):
    """Tables fail with an error, so many times."""

    def __init__(self, **errors: tuple[int, PublishError]) -> None:
        super().__init__()
        self._errors = errors
        self.tries: list[str] = []

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        self.tries.append(entry.table.name)
        times, error = self._errors.get(entry.table.name, (0, None))
        if error is not None and Counter(self.tries)[entry.table.name] <= times:
            raise error
        return super().publish(entry, mark)


def _context(tmp_path: Path, publisher: MemoryPublisher, *, attempts: int = 3) -> RunContext:
    made: Any = SimpleNamespace(
        config=SimpleNamespace(
            name="games",
            run=Run(publish_attempts=attempts),
            publish_threads=2,
            cdc=None,
            hides_logs=False,
            keys=(),
            lake=None,
            tables=SimpleNamespace(publisher="direct"),
        ),
        publishing=PublishState(publisher, str(tmp_path / "parked")),
        progress=SimpleNamespace(
            claim=SimpleNamespace(check=lambda: None),
            manifests=SimpleNamespace(text=lambda batch: b""),
            manifest_copy=SimpleNamespace(write=lambda text: None),
            app_id=LIFE,
            lane="stream",
        ),
        reports=RunReports("games", EventBus()),
        spark=None,
    )
    return made


def _manifest(tmp_path: Path, *tables: str) -> Manifest:
    return Manifest(
        pipeline="games",
        life="life1",
        batch=0,
        epoch=1,
        ranges=(),
        tables=tuple(batch_of(tmp_path / name, 0, numbers(1)) for name in tables),
        counts=Counts(),
        dead_letters={},
        schemas=(),
        created_at="",
    )


def _published(context: RunContext, manifest: Manifest) -> dict[str, Outcome]:
    done = commits.publish_all(context, manifest, fresh=False)
    return {each.table: each.outcome for each in done}


_IO = LakeUnavailableError("cannot commit to a table", evidence="Input/output error")


def test_a_commit_that_fails_and_then_does_not_parks_nothing(tmp_path: Path) -> None:
    publisher = _Failing(chess=(2, _IO), go=(1, _IO))
    context = _context(tmp_path, publisher)
    heard: list[object] = []
    context.reports.bus.subscribe(heard.append)
    done = _published(context, _manifest(tmp_path, "chess", "go", "poker"))
    assert set(done.values()) == {Outcome.PUBLISHED}
    assert (parked(context.publishing.parking), heard) == ([], [])
    # all once, then those that failed, together, then the one that failed again
    rounds = [sorted(publisher.tries[:3]), sorted(publisher.tries[3:5]), publisher.tries[5:]]
    assert rounds == [["chess", "go", "poker"], ["chess", "go"], ["chess"]]


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_table_is_parked_after_as_many_tries_as_the_file_says(
    tmp_path: Path, attempts: int
) -> None:
    publisher = _Failing(chess=(99, _IO))
    context = _context(tmp_path, publisher, attempts=attempts)
    heard: list[TableParked] = []
    context.reports.bus.subscribe(heard.append)  # type: ignore[arg-type]
    done = _published(context, _manifest(tmp_path, "chess", "go"))
    assert done == {"chess": Outcome.PARKED, "go": Outcome.PUBLISHED}
    assert Counter(publisher.tries) == {"chess": attempts, "go": 1}
    assert [event.table for event in heard] == ["chess"]


@pytest.mark.parametrize("reason", ["columns", "partitions", "features", "format"])
def test_what_cannot_pass_by_itself_is_not_tried_again(tmp_path: Path, reason: str) -> None:
    publisher = _Failing(chess=(99, PublishError("no", reason=reason)))
    done = _published(_context(tmp_path, publisher), _manifest(tmp_path, "chess", "go"))
    assert done["chess"] is Outcome.PARKED
    assert Counter(publisher.tries)["chess"] == 1


def test_where_nothing_at_all_can_be_written_nothing_is_parked(tmp_path: Path) -> None:
    publisher = _Failing(chess=(99, _IO), go=(99, _IO))
    context = _context(tmp_path, publisher)
    with pytest.raises(LakeUnavailableError):
        _published(context, _manifest(tmp_path, "chess", "go"))
    assert parked(context.publishing.parking) == []
    assert Counter(publisher.tries) == {"chess": 1, "go": 1}


def test_a_merge_that_fails_and_then_does_not_parks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[list[str]] = []

    def merge_all(_: object, lake: object, orders: list[Any]) -> list[Published]:
        tries.append([merge.table for merge in orders])
        return [_merged(merge.table, tries) for merge in orders]

    monkeypatch.setattr(merges, "merge_all", merge_all)
    monkeypatch.setattr(merges, "named", lambda *_, **__: nullcontext())
    orders: list[Any] = [SimpleNamespace(table=name) for name in ("chess", "go", "poker")]
    done = merges._merged(_context(tmp_path, MemoryPublisher()), orders, 0)
    assert [each.outcome for each in done] == [Outcome.PUBLISHED, Outcome.PUBLISHED, Outcome.PARKED]
    # poker has columns that do not fit: that is tried once
    assert tries == [["chess", "go", "poker"], ["go"]]


def test_a_table_of_change_data_waits_where_nothing_says_how_to_merge_it(tmp_path: Path) -> None:
    context = _context(tmp_path, MemoryPublisher())
    found = _manifest(tmp_path, "orders_log", "orders")
    log, orders = (
        replace(entry, table=replace(entry.table, role=role))
        for entry, role in zip(found.tables, (Role.LOG, Role.MERGED), strict=True)
    )
    done = _published(context, replace(found, tables=(log, replace(orders, files=()))))
    assert done == {"orders_log": Outcome.PUBLISHED, "orders": Outcome.PARKED}
    assert [each.table for each in parked(context.publishing.parking)] == ["orders"]
    lake = SimpleNamespace(address=str(tmp_path))
    config: Any = SimpleNamespace(lake=lake, cdc=None, hides_logs=False, keys=())
    with pytest.raises(PublishError) as caught:
        merges.publish_waiting(MemoryPublisher(), config, orders, Mark(LIFE, 0, ""))
    assert (caught.value.code, caught.value.where) == (ErrorCode.COMMIT_FAILED, "keys")


def _merged(table: str, tries: list[list[str]]) -> Published:
    if table == "poker":
        return Published(table, Outcome.PARKED, error=f"{ErrorCode.COMMIT_FAILED}: columns")
    if table == "go" and len(tries) == 1:
        return Published(
            table, Outcome.PARKED, error=f"{ErrorCode.LAKE_UNAVAILABLE}: I/O", may_pass=True
        )
    return Published(table, Outcome.PUBLISHED, 1)
