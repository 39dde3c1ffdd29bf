import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary_lab.simulate.cdc.datastream_files import CdcSent, FileStream, write_files
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan, Feature, SourceType
from tests.lab.simulate.cdc_replay import Read, distinct, is_data, read_all, replay, same_rows

FILES = (CdcFormat.AVRO, CdcFormat.JSON, CdcFormat.JSON_ARRAY)


def chaos(**more: Any) -> CdcPlan:
    usual: dict[str, Any] = {"tables": 13, "events": 400, "rows": 6, "features": CHAOS}
    return CdcPlan(**(usual | more))


def written(plan: CdcPlan, root: Path) -> tuple[FileStream, CdcSent, list[Read]]:
    stream = FileStream(plan)
    sent = write_files(stream, root)
    return stream, sent, read_all(root)


def content(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def assert_true(stream: FileStream, reads: list[Read], *, backfill: Any = "before_cdc") -> None:
    found = replay(reads, backfill=backfill)
    truth = stream.model.truth(backfill=backfill)
    assert set(found) == set(truth)
    for table in stream.model.seen:
        if table.shape.key:
            claim = table.shape.claim
            carried = {name: str(column.carried) for name, column in table.columns.items()}
            assert same_rows(found[claim].values(), truth[claim], carried), claim


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("source_type", SourceType)
def test_truth_is_what_a_naive_replay_finds(
    source_type: SourceType, format: CdcFormat, tmp_path: Path
) -> None:
    plan = chaos(source_type=source_type, format=format, gzip=format is CdcFormat.JSON)
    stream, _, reads = written(plan, tmp_path)
    assert_true(stream, reads)
    assert_true(stream, reads, backfill="by_timestamp")


@settings(max_examples=settings().max_examples // 2)
@given(
    seed=st.integers(0, 2**40),
    tables=st.integers(1, 15),
    events=st.integers(0, 400),
    rows=st.integers(0, 12),
    rounds=st.integers(3, 6),
    source_type=st.sampled_from(SourceType),
    features=st.frozensets(st.sampled_from(Feature)),
)
def test_truth_holds_for_every_plan(
    tmp_path_factory: pytest.TempPathFactory, **numbers: Any
) -> None:
    plan = CdcPlan(**numbers)
    stream, sent, reads = written(plan, tmp_path_factory.mktemp("cdc"))
    assert len(reads) == sent.events
    assert sent.changes == plan.events
    assert_true(stream, distinct(reads))


def test_the_same_plan_writes_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    written(chaos(), first)
    written(chaos(), second)
    written(chaos(seed=1), other)
    assert content(first) == content(second)
    assert not set(content(first)) & set(content(other))


@pytest.mark.parametrize("source_type", SourceType)
def test_everything_is_counted(source_type: SourceType, tmp_path: Path) -> None:
    stream, sent, reads = written(chaos(source_type=source_type), tmp_path)
    once = distinct(reads)
    assert (sent.events, sent.distinct) == (len(reads), len(once))
    assert sent.duplicates == len(reads) - len(once) > 0
    assert sent.changes == 400 == sum(not read.is_backfill for read in once)
    assert sent.backfilled == sum(read.is_backfill for read in once)
    per_table = Counter(json.dumps(read.claim, separators=(",", ":")) for read in once)
    assert sent.per_table == per_table
    assert sum(sent.by_change_type.values()) == sent.distinct
    kinds = Counter(r.metadata["change_type"] for r in once if not r.is_backfill)
    assert sent.by_change_type == kinds | {"read": sent.backfilled}
    assert sent.files == len({read.file for read in reads})
    data = [path for path in content(tmp_path) if path not in {read.file for read in reads}]
    assert sent.noise_files == len(data)
    assert sent.rows == {c.text: len(rows) for c, rows in stream.model.truth().items()}
    assert len(once) - len({read.event["uuid"] for read in once}) == sent.reused_uuids == 4


def test_a_calm_stream_is_in_order(tmp_path: Path) -> None:
    stream, sent, reads = written(CdcPlan(), tmp_path)
    assert sent.duplicates == sent.late_files == sent.noise_files == sent.reused_uuids == 0
    assert (sent.changes, sent.backfilled) == (1_000, 40)
    assert list(sent.rows) == ['["shop","","users"]', '["shop","","orders"]']
    assert_true(stream, reads)
    for claim in {read.claim for read in reads}:
        places = [
            (read.metadata["log_file"], read.metadata["log_position"])
            for read in reads
            if read.claim == claim and not read.is_backfill
        ]
        assert places == sorted(places)


def test_files_lie_in_the_folder_of_their_minute(tmp_path: Path) -> None:
    _, _, reads = written(CdcPlan(tables=1, events=50, rounds=2), tmp_path)
    for read in reads:
        folder, *minute, name = read.file.split("/")
        assert folder == read.event["object"] == "shop_users"
        assert name.startswith(f"{read.event['schema_key']}_{read.event['read_method']}_")
        assert name.endswith(".avro")
        if read.metadata["change_type"] != "UPDATE-INSERT":
            assert read.event["source_timestamp"].strftime("%Y/%m/%d/%H/%M") == "/".join(minute)
    assert len({read.file.rpartition("/")[0] for read in reads}) == 4
    ids = [read.event["uuid"] for read in reads if read.file == reads[0].file]
    assert [int(uuid[-8:], 16) for uuid in ids] == list(range(len(ids)))
    assert len({uuid[:-8] for uuid in ids}) == 1


@pytest.mark.parametrize("source_type", SourceType)
def test_an_avro_file_has_one_schema_and_no_codec(source_type: SourceType, tmp_path: Path) -> None:
    written(chaos(source_type=source_type), tmp_path)
    keys: dict[str, set[str]] = {}
    for path in tmp_path.rglob("*"):
        if not path.is_file() or not is_data(path) or not path.stat().st_size:
            continue
        reader = fastavro.reader(io.BytesIO(path.read_bytes()))
        assert reader.metadata["avro.codec"] == "null"
        schema = json.loads(reader.metadata["avro.schema"])
        assert [field["name"] for field in schema["fields"]] == [
            "uuid",
            "read_timestamp",
            "source_timestamp",
            "object",
            "read_method",
            "stream_name",
            "schema_key",
            "sort_keys",
            "source_metadata",
            "payload",
        ]
        assert all(f["type"][0] == "null" for f in schema["fields"][-1]["type"]["fields"])
        records: list[Any] = list(reader)
        for record in records:
            assert record["schema_key"] == path.name.partition("_")[0]
            keys.setdefault(record["schema_key"], set()).add(json.dumps(schema))
    assert all(len(schemas) == 1 for schemas in keys.values())
    # the columns of some tables changed
    assert len(keys) > 13


METADATA = {
    SourceType.MYSQL: "table database primary_keys log_file log_position change_type is_deleted",
    SourceType.POSTGRESQL: "schema table is_deleted change_type tx_id lsn primary_keys",
    SourceType.ORACLE: (
        "schema table database row_id scn is_deleted change_type ssn rs_id tx_id log_file "
        "primary_keys"
    ),
    SourceType.SQLSERVER: (
        "database schema table is_deleted change_type lsn tx_id physical_location replication_index"
    ),
}
METHODS = {
    SourceType.MYSQL: {
        "mysql-cdc-binlog",
        "mysql-backfill-fulldump",
        "mysql-backfill-incremental",
    },
    SourceType.POSTGRESQL: {"postgres-cdc-wal", "postgresql-backfill"},
    SourceType.ORACLE: {"oracle-cdc-logminer", "oracle-backfill"},
    SourceType.SQLSERVER: {"sqlserver-cdc", "sqlserver-backfill"},
}


@pytest.mark.parametrize("format", [CdcFormat.AVRO, CdcFormat.JSON])
@pytest.mark.parametrize("source_type", SourceType)
def test_each_database_has_its_own_metadata(
    source_type: SourceType, format: CdcFormat, tmp_path: Path
) -> None:
    _, _, reads = written(chaos(source_type=source_type, format=format), tmp_path)
    for read in reads:
        assert list(read.metadata) == METADATA[source_type].split()
        assert read.event["sort_keys"][0] == read.millis
        deleted = read.metadata["change_type"] in ("DELETE", "UPDATE-DELETE")
        assert read.metadata["is_deleted"] is deleted
    assert {read.event["read_method"] for read in reads} == METHODS[source_type]


def test_sort_keys_of_mysql_come_in_both_ways(tmp_path: Path) -> None:
    _, _, reads = written(chaos(), tmp_path)
    backfilled = {tuple(r.event["sort_keys"][1:]) for r in reads if r.is_backfill}
    assert backfilled == {("", 0), (0, 0)}
    for read in reads:
        if not read.is_backfill:
            place = [read.metadata["log_file"], read.metadata["log_position"]]
            assert read.event["sort_keys"][1:] == place


def test_methods_can_be_silent_about_the_database(tmp_path: Path) -> None:
    plan = CdcPlan(events=30, bare_methods=True, source_type=SourceType.ORACLE)
    _, _, reads = written(plan, tmp_path)
    assert {read.event["read_method"] for read in reads} == {"cdc", "backfill"}


def test_a_change_of_key_in_mysql_is_two_halves_of_one_place(tmp_path: Path) -> None:
    _, sent, reads = written(chaos(), tmp_path)
    pairs = 0
    for before, read in itertools.pairwise(reads):
        if before.metadata["change_type"] != "UPDATE-DELETE":
            continue
        assert read.metadata["change_type"] == "UPDATE-INSERT"
        assert read.file == before.file
        assert read.metadata["log_file"] == before.metadata["log_file"]
        assert read.metadata["log_position"] == before.metadata["log_position"]
        assert read.millis == before.millis + 1_000
        names = read.metadata["primary_keys"]
        old, new = before.event["payload"], read.event["payload"]
        assert [old[n] for n in names] != [new[n] for n in names]
        pairs += 1
    assert pairs >= sent.happened["key_changes"] >= 5


def test_postgresql_remembers_only_the_key_of_a_deleted_row(tmp_path: Path) -> None:
    _, _, reads = written(chaos(source_type=SourceType.POSTGRESQL), tmp_path)
    deletes = [r for r in reads if r.metadata["is_deleted"] and r.metadata["primary_keys"]]
    for read in deletes:
        told = {name for name, value in read.event["payload"].items() if value is not None}
        assert told == set(read.metadata["primary_keys"])
    assert deletes


def test_files_of_messages_are_refused() -> None:
    from distributary.errors import ConfigError

    with pytest.raises(ConfigError):
        FileStream(CdcPlan(format=CdcFormat.DEBEZIUM))
