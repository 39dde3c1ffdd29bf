"""The worst tables come first, and a rare type is not a stale one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.status.health import Health, assess, losses_of, rank

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def table(name, *, quiet=0.0, lived=3600.0, batches=360, **changes):
    last = NOW - timedelta(seconds=quiet)
    values = {
        "pipeline": "p",
        "table": name,
        "role": "each",
        "type": name,
        "path": name,
        "records": 1,
        "rows": 1,
        "bytes": 1,
        "columns": 1,
        "batches": batches,
        "version": 1,
        "first_seen": last - timedelta(seconds=lived),
        "last_commit": last,
    }
    return TableSummary(**{**values, **changes})


def health(item):
    return assess(item, as_of=NOW).health


def test_a_table_is_measured_by_its_own_habits():
    # every 10 s, and now quiet for an hour
    assert health(table("busy", quiet=3600)) is Health.STALE
    # once an hour, and quiet for three
    assert health(table("rare", quiet=3 * 3600, lived=100 * 3600, batches=100)) is Health.HEALTHY
    assert health(table("short pause", quiet=300)) is Health.HEALTHY
    assert health(table("new", quiet=9999, batches=1, lived=0)) is Health.HEALTHY


def test_parked_beats_everything():
    item = table("x", parked_batches=1, parked_records=5)
    assert health(item) is Health.PARKED
    assert health(table("y", parked_batches=1, last_commit=None)) is Health.PARKED
    assert health(table("z", last_commit=None)) is Health.HEALTHY


def test_the_worst_fifteen_and_the_rest_as_a_number():
    tables = [table(f"ok{n}") for n in range(997)]
    tables += [table("stale", quiet=9000), table("staler", quiet=90_000)]
    tables += [table("parked", parked_batches=2, parked_records=7)]
    ranking = rank(tables, as_of=NOW)
    assert [t.table.table for t in ranking.shown[:3]] == ["parked", "staler", "stale"]
    assert (len(ranking.shown), ranking.total, ranking.healthy_not_shown) == (15, 1000, 985)
    assert (ranking.parked, ranking.stale, ranking.healthy) == (1, 2, 997)


def test_more_trouble_than_room_is_still_counted():
    tables = [table(f"t{n}", parked_batches=1, parked_records=n) for n in range(40)]
    ranking = rank(tables, as_of=NOW, shown=10)
    assert ranking.shown[0].table.table == "t39"
    assert (ranking.parked, ranking.healthy_not_shown) == (40, 0)


def test_no_tables():
    assert rank([], as_of=NOW).total == 0


def test_what_one_pipeline_lost_is_not_lost_for_another(tmp_path):
    """Both write to a table of one name, which was put back to what it was a while ago."""
    log = tmp_path / "shared" / "_delta_log"
    log.mkdir(parents=True)
    for version in range(6):
        (log / f"{version:020d}.json").write_text("{}")
    ahead = table("shared", pipeline="ahead", version=9)
    tables = [ahead, table("shared", pipeline="behind", version=4)]
    for order in (tables, tables[::-1]):
        losses = losses_of(str(tmp_path), order)
        assert losses == {("ahead", "shared"): Health.BEHIND}
        ranking = rank(order, as_of=NOW, losses=losses)
        assert (ranking.behind, ranking.healthy) == (1, 1)
        assert ranking.shown[0].table == ahead


def test_a_table_that_refuses_most_records_is_not_healthy():
    tables = [table("good", rows=50), table("bad", rows=1), table("unsure", rows=50)]
    letters = {"good": 50, "bad": 50}
    ranking = rank(tables, as_of=NOW, letters=letters, doubtful={"unsure", "bad"})
    found = {item.table.table: item.health for item in ranking.shown}
    assert found == {"good": Health.HEALTHY, "bad": Health.REFUSING, "unsure": Health.DOUBTFUL}
    assert (ranking.refusing, ranking.doubtful, ranking.healthy) == (1, 1, 1)
    log = table("log", role="log", rows=0)
    assert assess(log, as_of=NOW, letters=5).health is Health.HEALTHY
