"""Everything that chaos promises really happens."""

import io
import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import fastavro
import pytest

from distributary_lab.simulate.cdc.datastream_files import ChangeFile, FileStream
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan, Feature, SourceType
from distributary_lab.simulate.cdc.simulated_database import Op, SourceChange


class Told:
    """A whole stream, with the round in which each file appeared."""

    def __init__(self, **more: Any) -> None:
        usual: dict[str, Any] = {"tables": 16, "events": 600, "rows": 6, "features": CHAOS}
        self.stream = FileStream(CdcPlan(**(usual | more)))
        self.files: list[tuple[int, ChangeFile]] = [
            (round.number, file) for round in self.stream.rounds() for file in round.files
        ]
        self.sent = self.stream.sent()

    @property
    def arrived(self) -> list[SourceChange]:
        """All events, in the order in which their files appear."""
        return [event.change for _, file in self.files for event in file.events]

    @property
    def happened(self) -> list[SourceChange]:
        """Each change once, in the order of the source's log."""
        once = {e.number: e.change for _, file in self.files for e in file.events}
        changes = [change for change in once.values() if change.op is not Op.READ]
        return sorted(changes, key=lambda change: change.order("before_cdc"))


@pytest.fixture(scope="module")
def mysql() -> Told:
    return Told()


@pytest.fixture(scope="module")
def sqlserver() -> Told:
    return Told(source_type=SourceType.SQLSERVER, format=CdcFormat.JSON)


def test_rows_change_many_times_in_one_instant(mysql: Told) -> None:
    often = Counter((c.shape.claim, c.key, c.ts) for c in mysql.happened if c.shape.key)
    assert max(often.values()) >= 5
    assert mysql.sent.happened["bursts"] >= 5


def test_the_log_rolls_over_while_a_row_changes(mysql: Told) -> None:
    places = defaultdict(set)
    for change in mysql.happened:
        places[change.shape.claim, change.key, change.ts].add(
            change.position.event_fields["log_file"]
        )
    assert {"mysql-bin.999999", "mysql-bin.1000000"} in places.values()
    assert set().union(*places.values()) == {"mysql-bin.999999", "mysql-bin.1000000"}


def test_a_change_arrives_after_the_delete_that_followed_it(mysql: Told) -> None:
    deletes: dict[Any, SourceChange] = {}
    late = 0
    for change in mysql.arrived:
        row = (change.shape.claim, change.key)
        if change.op is Op.DELETE:
            deletes[row] = change
        elif change.op is Op.UPDATE and row in deletes:
            late += change.order("before_cdc") < deletes[row].order("before_cdc")
    assert late >= 4


@pytest.mark.parametrize("source_type", SourceType)
def test_a_backfill_tells_a_later_time_than_a_change_of_its_rows(source_type: SourceType) -> None:
    told = Told(source_type=source_type)
    reads = [change for change in told.arrived if change.op is Op.READ]
    gone = {(c.shape.claim, c.key): c.ts for c in told.happened if c.op is Op.DELETE}
    assert any(c.ts > gone.get((c.shape.claim, c.key), c.ts) for c in reads)
    # who believes that time brings deleted rows back
    model = told.stream.model
    assert model.truth(backfill="by_timestamp") != model.truth()


def test_rows_that_were_there_before_come_by_a_backfill_only(mysql: Told) -> None:
    first: dict[Any, Op] = {}
    for change in sorted(mysql.arrived, key=lambda c: c.order("before_cdc")):
        first.setdefault((change.shape.claim, change.serial), change.op)
    read = {(c.shape.claim, c.serial) for c in mysql.arrived if c.op is Op.READ}
    assert {op for row, op in first.items() if row not in read} == {Op.INSERT}


def test_columns_and_tables_come_and_go(mysql: Told) -> None:
    sent = mysql.sent
    assert sent.new_columns and sent.dropped_columns
    rounds = defaultdict(list)
    for number, file in mysql.files:
        for event in file.events:
            rounds[event.change.shape.claim.text].append((number, event.change.row))
    for table, names in sent.new_columns.items():
        assert all(any(name in row for _, row in rounds[table]) for name in names)
        assert any(names[-1] not in row for _, row in rounds[table])
    for table, names in sent.dropped_columns.items():
        assert any(names[-1] not in row for _, row in rounds[table])
    assert len(sent.new_tables) == 3
    for table, born in sent.new_tables.items():
        assert born == min(number for number, _ in rounds[table]) > 0


def test_names_are_odd(mysql: Told) -> None:
    claims = {table.shape.claim for table in mysql.stream.model.seen}
    databases = {database for database, _, table in claims if table == "orders"}
    assert databases == {"shop", "ea-main"}
    assert {"order", "my table", "prices-eu"} <= {claim.table for claim in claims}
    columns = {name for table in mysql.stream.model.seen for name in table.columns}
    assert {"group", "select"} <= columns
    assert not any(" " in name for name in columns)


def test_names_of_columns_are_as_odd_as_the_format_allows(sqlserver: Told) -> None:
    columns = {name for table in sqlserver.stream.model.seen for name in table.columns}
    assert "unit price" in columns


def test_keys_have_nulls_only_where_the_database_allows_it(sqlserver: Told, mysql: Told) -> None:
    assert any(None in change.key for change in sqlserver.happened)
    assert not any(None in change.key for change in mysql.happened)
    # a unique index takes null for a value: there is one row of each key
    for claim, rows in sqlserver.stream.model.truth().items():
        keys = {t.shape.claim: t.shape.key for t in sqlserver.stream.model.seen}[claim]
        assert len({tuple(row[name] for name in keys) for row in rows}) == len(rows)


def test_keys_are_stated_in_other_letters(sqlserver: Told) -> None:
    stated = {name for table in sqlserver.stream.model.seen for name in table.shape.stated_key}
    assert stated and all(name.isupper() for name in stated)
    assert not stated & {name for table in sqlserver.stream.model.seen for name in table.columns}


def test_what_comes_again_is_the_same_bytes() -> None:
    for format in (CdcFormat.AVRO, CdcFormat.JSON):
        told = Told(format=format)
        found = defaultdict(set)
        files = defaultdict(list)
        for _, file in told.files:
            for event, data in zip(file.events, parts(file), strict=True):
                found[event.number].add(data)
                files[event.number].append(file.path)
        again = [paths for paths in files.values() if len(paths) > 1]
        assert sum(len(paths) - 1 for paths in again) == told.sent.duplicates > 10
        assert all(len(set(paths)) == len(paths) for paths in again)
        assert all(len(contents) == 1 for contents in found.values())


def parts(file: ChangeFile) -> list[bytes]:
    """The bytes of each event."""
    if not file.events:
        return []
    if not file.data.startswith(b"Obj"):
        return file.data.split(b"\n")[: len(file.events)]
    reader = fastavro.reader(io.BytesIO(file.data))
    found = []
    for record in reader:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, reader.writer_schema, record)
        assert out.getvalue() in file.data
        found.append(out.getvalue())
    return found


def test_an_id_is_used_for_another_event_of_the_same_table(mysql: Told) -> None:
    by_uuid: dict[str, dict[int, SourceChange]] = defaultdict(dict)
    for _, file in mysql.files:
        for event in file.events:
            by_uuid[event.uuid][event.number] = event.change
    reused = [list(each.values()) for each in by_uuid.values() if len(each) > 1]
    assert len(reused) == mysql.sent.reused_uuids == 4
    for one, other in reused:
        assert one.shape.claim == other.shape.claim
        assert one != other


def test_listing_and_writing_are_out_of_order(mysql: Told) -> None:
    listed = sorted(mysql.files, key=lambda each: each[1].path)
    for files in (mysql.files, listed):
        wrong = Counter[bool]()
        newest: dict[Any, tuple[int, ...]] = {}
        for _, file in files:
            for event in file.events:
                if event.change.op is not Op.READ:
                    order = event.change.order("before_cdc")
                    row = (event.change.shape.claim, event.change.key)
                    wrong[order < newest.get(row, order)] += 1
                    newest[row] = max(order, newest.get(row, order))
        assert wrong[True] > 10


def test_files_appear_in_minutes_that_are_over(mysql: Told) -> None:
    late = [(number, file) for number, file in mysql.files if file.late]
    assert len(late) == mysql.sent.late_files > 5
    start = mysql.stream.plan.start_millis
    over = 0
    for number, file in late:
        minute = datetime.strptime("/".join(file.path.split("/")[1:6]) + "Z", "%Y/%m/%d/%H/%M%z")
        over += minute.timestamp() * 1000 < start + number * 120_000
    assert over > 5


def test_files_without_events_lie_between(mysql: Told) -> None:
    quiet = [file for _, file in mysql.files if not file.events]
    names = [file.path.rpartition("/")[2] for file in quiet]
    assert len(quiet) == mysql.sent.noise_files
    assert any(not file.data and file.path.endswith(".avro") for file in quiet)
    assert any(file.data.startswith(b"Obj") and file.path.endswith(".avro") for file in quiet)
    assert any(json.loads(file.data) for file in quiet if file.path.endswith(".avsc"))
    assert any(name.endswith("_$folder$") for name in names)
    assert any(name.startswith(".") for name in names)
    assert len({file.path for _, file in mysql.files}) == len(mysql.files)


def test_some_names_do_not_say_what_is_in_them(mysql: Told) -> None:
    ends = Counter(file.path.endswith(".avro") for _, file in mysql.files if file.events)
    assert ends[True] > ends[False] > 20


def test_times_of_json_events_come_in_every_way(sqlserver: Told) -> None:
    told = [
        json.loads(line)["source_timestamp"]
        for _, file in sqlserver.files
        if file.events
        for line in file.data.decode().split("\n")[:-1]
    ]
    texts = [time for time in told if isinstance(time, str)]
    assert any(isinstance(time, int) for time in told)
    assert any(" " in time for time in texts)
    assert {time.endswith("Z") for time in texts if "T" in time} == {True, False}


def test_nothing_of_it_happens_unless_it_is_asked_for() -> None:
    calm = Told(features=frozenset())
    assert calm.sent.happened == {"backfills": 16}
    assert calm.sent.events == calm.sent.distinct == 600 + 16 * 6
    assert not calm.sent.new_columns and not calm.sent.dropped_columns
    assert not any(file.late or not file.events for _, file in calm.files)
    only = Told(features=frozenset({Feature.NEW_TABLES}))
    assert len(only.sent.new_tables) == 3
    assert not only.sent.duplicates
