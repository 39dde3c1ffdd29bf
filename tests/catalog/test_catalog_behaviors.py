"""What all catalogs do alike, on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse
from deltalake import write_deltalake
from pydantic import TypeAdapter

from distributary.catalog.base import (
    ABSENT,
    FOREIGN,
    NOT_EMPTY,
    CatalogEntry,
    TableCatalog,
    entry_of,
    location_of,
    text_type,
)
from distributary.catalog.glue import GlueTables
from distributary.catalog.spark_catalog import SessionCatalog
from distributary.catalog.unity import UnityTables
from distributary.config.catalog import CatalogConfig
from distributary.errors import CatalogError, CatalogUnavailableError, ErrorCode
from distributary.store.base import same_place
from tests.catalog.unity_server import TOKEN, Refused, Unity, unity_server
from tests.services.shared import unique as unique_name
from tests.source.s3_server import KEYS, S3Server, s3_server

SPARK = ("spark", "spark_named")
KINDS = (*SPARK, "unity", "unity_older", "glue")


def unique(stem: str) -> str:
    return unique_name(stem).replace("-", "_")


def settings(**given: Any) -> Any:
    return TypeAdapter(CatalogConfig).validate_python(given)


@pytest.fixture(scope="module")
def aws() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def unity() -> Iterator[Unity]:
    with unity_server() as server:
        yield server


@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.spark) if k in SPARK else k for k in KINDS]
)
def catalog(request: pytest.FixtureRequest) -> Iterator[TableCatalog]:
    schema = unique("games")
    made: TableCatalog
    match request.param:
        case "spark" | "spark_named" as kind:
            spark = request.getfixturevalue("spark")
            name = {"name": "spark_catalog"} if kind == "spark_named" else {}
            made = SessionCatalog(spark, settings(type="spark", schema=schema, **name))
        case "glue":
            made = glue(request.getfixturevalue("aws"), schema)
        case kind:
            server = request.getfixturevalue("unity")
            server.updates = kind == "unity"
            made = open_unity(server, schema)
    yield made
    made.close()


def open_unity(server: Unity, schema: str = "games") -> UnityTables:
    given = {"url": server.url, "token": TOKEN, "name": "main", "schema": schema}
    return UnityTables(settings(type="unity", **given))


def glue(server: S3Server, schema: str) -> GlueTables:
    endpoint = server.options["AWS_ENDPOINT_URL"]
    given = {"region": "eu-central-1", "endpoint": endpoint, "schema": schema}
    tables = GlueTables(settings(type="glue", **given), KEYS)
    # the server does not know this request
    answer = (AWSResponse("", 200, {}, b""), {"UserDefinedFunctions": []})
    event = "before-call.glue.GetUserDefinedFunctions"
    tables._glue.meta.events.register(event, lambda **_: answer)
    return tables


Made = Callable[..., CatalogEntry]


@pytest.fixture
def make(tmp_path: Path) -> Made:
    """A table in a folder, and its entry."""

    def made(name: str, **columns: Any) -> CatalogEntry:
        path = str(tmp_path / "a lake 100%" / name)
        rows = pa.table(columns or {"n": pa.array([1, 2])})
        write_deltalake(path, rows, mode="append", schema_mode="merge", description="all of it")
        found = entry_of(name, path, settings(type="spark", schema="x"))
        assert found is not None
        return found

    return made


def test_an_entry_is_found_again_with_its_place(catalog: TableCatalog, make: Made) -> None:
    assert catalog.entries() == {}
    catalog.prepare()
    catalog.prepare()
    entries = [make(f"silver_{n}") for n in range(5)]
    for entry in entries:
        catalog.create(entry)
    found = catalog.entries()
    assert sorted(found) == [f"silver_{n}" for n in range(5)]
    for entry in entries:
        assert same_place(found[entry.name].location, entry.location)
        assert found[entry.name].fingerprint in (None, entry.fingerprint)


def test_a_name_is_taken_once(catalog: TableCatalog, make: Made) -> None:
    catalog.prepare()
    one, other = make("silver_chess"), make("silver_go")
    catalog.create(one)
    with pytest.raises(CatalogError):
        catalog.create(replace(other, name="silver_chess"))
    assert same_place(catalog.entries()["silver_chess"].location, one.location)


def test_what_is_dropped_is_gone_and_its_files_stay(catalog: TableCatalog, make: Made) -> None:
    catalog.prepare()
    entry = make("silver_chess")
    catalog.create(entry)
    catalog.create(make("silver_go"))
    catalog.drop("silver_chess")
    catalog.drop("silver_chess")
    assert list(catalog.entries()) == ["silver_go"]
    assert list(Path(entry.location).glob("*.parquet"))


def test_a_schema_is_dropped_if_we_made_it_and_nothing_is_in_it(
    catalog: TableCatalog, make: Made
) -> None:
    assert catalog.drop_schema() == ABSENT
    catalog.prepare()
    catalog.create(make("silver_chess"))
    assert catalog.drop_schema() == NOT_EMPTY
    assert list(catalog.entries()) == ["silver_chess"]
    catalog.drop("silver_chess")
    assert catalog.drop_schema() == ""
    assert catalog.drop_schema() == ABSENT


def test_new_columns_are_brought_over(catalog: TableCatalog, make: Made) -> None:
    catalog.prepare()
    first = make("silver_chess")
    catalog.create(first)
    deep = pa.array([{"a": [1], "b": [("k", 1.5)]}], DEEP)
    second = make("silver_chess", n=pa.array([3]), deep=deep)
    assert first.fingerprint != second.fingerprint
    catalog.entries()
    catalog.update(second)
    catalog.update(second)
    assert catalog.entries()["silver_chess"].fingerprint in (None, second.fingerprint)


DEEP = pa.struct([("a", pa.list_(pa.int32())), ("b", pa.map_(pa.string(), pa.float64()))])


# What one of them does.


@pytest.mark.spark
@pytest.mark.sql
def test_a_table_is_queried_by_its_name(spark: Any, make: Made) -> None:
    schema = unique("games")
    catalog = SessionCatalog(spark, settings(type="spark", schema=schema))
    catalog.prepare()
    for number in range(3):
        catalog.create(make(f"silver_{number}"))
        assert spark.sql(f"SELECT * FROM {schema}.silver_{number}").count() == 2
    # a column that came later needs nobody
    make("silver_2", n=pa.array([3]), later=pa.array(["x"]))
    assert spark.sql(f"SELECT * FROM {schema}.silver_2").columns == ["n", "later"]


@pytest.mark.spark
def test_names_in_statements_are_quoted(spark: Any, make: Made) -> None:
    schema = unique("games")
    catalog = SessionCatalog(spark, settings(type="spark", name="spark_catalog", schema=schema))
    catalog.prepare()
    entry = make("it's `odd`; DROP ${x}")
    catalog.create(replace(entry, name="plain"))
    assert same_place(catalog.entries()["plain"].location, entry.location)


@pytest.mark.spark
def test_a_metastore_that_the_session_does_not_have_is_said(spark: Any) -> None:
    catalog = SessionCatalog(spark, settings(type="hive", schema="games"))
    with pytest.raises(CatalogError) as caught:
        catalog.prepare()
    assert caught.value.code is ErrorCode.CATALOG_REFUSED


@pytest.mark.spark
def test_a_schema_of_others_stays_and_so_do_files_in_the_folder_of_ours(spark: Any) -> None:
    schema = unique("games")
    catalog = SessionCatalog(spark, settings(type="spark", schema=schema))
    spark.sql(f"CREATE SCHEMA {schema}")
    catalog.prepare()
    assert catalog.drop_schema() == FOREIGN
    spark.sql(f"DROP SCHEMA {schema}")
    catalog.prepare()
    about = {row[0]: row[1] for row in spark.sql(f"DESCRIBE SCHEMA {schema}").collect()}
    kept = Path(about["Location"].removeprefix("file:"), "lake", "notes.txt")
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    assert "files may be in its folder" in catalog.drop_schema()
    assert kept.read_text() == "mine"
    kept.unlink()
    kept.parent.rmdir()
    assert catalog.drop_schema() == ""


def test_a_schema_of_others_stays_in_unity_and_in_glue(unity: Unity, aws: S3Server) -> None:
    unity.schemas["main", "games"] = {"owner": "ana"}
    catalog = open_unity(unity)
    catalog.prepare()
    assert catalog.drop_schema() == FOREIGN
    assert unity.count("DELETE", "/schemas") == 0
    tables = glue(aws, unique("games"))
    tables._glue.create_database(DatabaseInput={"Name": tables._config.schema_})
    assert tables.drop_schema() == FOREIGN
    tables.close()


def test_unity_refuses_a_schema_that_was_filled_in_between(unity: Unity, make: Made) -> None:
    catalog = open_unity(unity)
    catalog.prepare()
    catalog.create(make("silver_chess"))
    catalog.entries = dict  # type: ignore[method-assign]
    with pytest.raises(CatalogError):
        catalog.drop_schema()
    assert unity.schemas


def test_unity_is_told_columns_and_comments(unity: Unity, make: Made) -> None:
    catalog = open_unity(unity)
    catalog.prepare()
    money = pa.array([None], pa.decimal128(12, 2))
    entry = make("silver_chess", n=pa.array([1]), money=money, deep=pa.array([None], DEEP))
    catalog.create(entry)
    told = unity.tables["main.games.silver_chess"]
    assert (told["table_type"], told["data_source_format"]) == ("EXTERNAL", "DELTA")
    assert told["storage_location"].startswith("file:///")
    assert told["comment"] == "all of it"
    columns = {c["name"]: c for c in told["columns"]}
    assert columns["n"]["type_name"] == "LONG"
    assert (columns["money"]["type_precision"], columns["money"]["type_scale"]) == (12, 2)
    assert columns["deep"]["type_text"] == "struct<a:array<int>,b:map<string,double>>"


def test_what_was_granted_in_unity_is_not_lost(unity: Unity, make: Made) -> None:
    unity.updates = False
    catalog = open_unity(unity)
    catalog.prepare()
    catalog.create(make("silver_chess"))
    granted = [{"principal": "ana", "privileges": ["SELECT"]}]
    unity.permissions["main.games.silver_chess"] = granted
    with pytest.raises(CatalogError):
        catalog.update(make("silver_chess", later=pa.array([1])))
    assert unity.permissions["main.games.silver_chess"] == granted
    assert unity.count("DELETE", "/tables") == 0


def test_a_server_that_forgets_properties_is_not_asked_for_changes_each_time(
    unity: Unity, make: Made
) -> None:
    unity.updates = False
    catalog = open_unity(unity)
    catalog.prepare()
    entry = make("silver_chess")
    catalog.create(entry)
    del unity.tables["main.games.silver_chess"]["properties"]
    catalog.update(entry)
    assert unity.count("DELETE", "/tables") == 0
    catalog.update(make("silver_chess", later=pa.array([1])))
    assert unity.count("DELETE", "/tables") == 1


def test_a_managed_table_is_never_dropped(unity: Unity, make: Made) -> None:
    catalog = open_unity(unity)
    catalog.prepare()
    catalog.create(make("silver_chess"))
    unity.tables["main.games.silver_chess"]["table_type"] = "MANAGED"
    assert catalog.entries()["silver_chess"].location is None
    with pytest.raises(CatalogError):
        catalog.drop("silver_chess")
    assert unity.deleted_files == []


@pytest.mark.parametrize(
    ("status", "kind"), [(500, CatalogUnavailableError), (429, CatalogUnavailableError)]
)
def test_a_server_in_trouble_may_be_asked_again(
    unity: Unity, status: int, kind: type[CatalogError]
) -> None:
    def spoil(method: str, path: str) -> None:
        raise Refused(status, "INTERNAL", f"do not show {TOKEN}")

    unity.before = spoil
    with pytest.raises(kind) as caught:
        open_unity(unity).entries()
    assert caught.value.retryable
    assert TOKEN not in str(caught.value)


def test_a_wrong_token_is_not_shown(unity: Unity) -> None:
    given = {"url": unity.url, "token": "canary-wrong", "name": "main", "schema": "games"}
    with pytest.raises(CatalogError) as caught:
        UnityTables(settings(type="unity", **given)).entries()
    assert not caught.value.retryable
    assert "canary-wrong" not in str(caught.value)


def test_a_catalog_that_is_not_there_is_not_made(unity: Unity) -> None:
    unity.catalogs.clear()
    with pytest.raises(CatalogError):
        open_unity(unity).prepare()


def test_a_server_that_is_not_there_is_silent(unity: Unity) -> None:
    given = {"url": "http://127.0.0.1:1", "name": "main", "schema": "games"}
    with pytest.raises(CatalogUnavailableError):
        UnityTables(settings(type="unity", **given)).prepare()


def test_glue_has_what_readers_look_for(aws: S3Server, make: Made) -> None:
    import boto3

    schema = unique("games")
    catalog = glue(aws, schema)
    catalog.prepare()
    entry = replace(make("Silver_Chess", deep=pa.array([None], DEEP)), location="s3://b/lake/x")
    catalog.create(entry)
    client = boto3.client(
        "glue",
        region_name="eu-central-1",
        endpoint_url=aws.options["AWS_ENDPOINT_URL"],
        **KEYS,
    )
    table = client.get_table(DatabaseName=schema, Name="silver_chess")["Table"]
    assert table["TableType"] == "EXTERNAL_TABLE"
    assert table["Parameters"]["spark.sql.sources.provider"] == "delta"
    stored = table["StorageDescriptor"]
    assert (stored["Location"], stored["SerdeInfo"]["Parameters"]["path"]) == (
        "s3://b/lake/x",
        "s3://b/lake/x",
    )
    (column,) = stored["Columns"]
    assert column["Type"] == "struct<a:array<int>,b:map<string,double>>"


def test_glue_without_an_answer_shows_no_key() -> None:
    given = {"region": "eu-central-1", "endpoint": "http://127.0.0.1:1", "schema": "games"}
    catalog = GlueTables(settings(type="glue", **given), KEYS)
    with pytest.raises(CatalogUnavailableError) as caught:
        catalog.entries()
    assert KEYS["aws_secret_access_key"] not in str(caught.value)


def test_addresses_of_one_folder() -> None:
    assert same_place("file:/a%20b/t/", "/a b/t")
    assert same_place("file:///a/t", "/a/t")
    assert same_place("s3a://b/lake/t", "s3://b/lake/t/")
    assert not same_place("s3://b/lake/t2", "s3://b/lake/t")
    assert not same_place(None, "/a")
    assert location_of("s3://b/t", "s3a") == "s3a://b/t"
    assert location_of("/a/t", "s3a") == "/a/t"


def test_no_field_imitates_a_type() -> None:
    odd = {"name": "a:int,b", "type": "string", "nullable": True, "metadata": {}}
    assert text_type({"type": "struct", "fields": [odd]}) == "struct<`a:int,b`:string>"
