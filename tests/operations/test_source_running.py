"""A real database against the lake that its changes have made: found, named, healed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.changes.source.base import Database, connect
from distributary.changes.source.compare import SourceCheck
from distributary.config.database import parse_address
from distributary.engine import batch
from distributary.engine.pipeline import Pipeline
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.operations.source_comparison import LANE, comparison, finish, heal, read_again
from distributary_lab.services.services import Services
from tests.lakes.debezium import Shop
from tests.services.debezium import Debezium, avro_events, json_events
from tests.services.postgres import DATABASE, USER, Postgres

NOW = "available_now"
KINDS = """
create type {0}.mood as enum ('calm', 'wild');
create table {0}.kinds (name varchar(40) collate "und-x-icu", no smallint, primary key (name, no),
  n numeric(12,3), free numeric, at timestamp, at3 timestamp(3), moment timestamptz, day date,
  clock time, data bytea, doc jsonb, uid uuid, padded char(6), f real, d double precision,
  mood {0}.mood, yes boolean, bits bit(5), big text, span interval, address inet);
alter table {0}.kinds alter big set storage external;
insert into {0}.kinds values
  ('Äpfel', 1, 1.500, 1.50, '2024-01-01 01:02:03.123456', '2024-01-01 01:02:03.12',
   '2024-06-01 01:02:03.5+02', '2024-02-29', '12:13:14.5', '\\x00ff10', '{{"b": 1, "a": [1, 2.0]}}',
   '6fa459ea-ee8a-3ca4-894e-db77e160355e', 'ab', 1.1, 0.1, 'wild', true, '10110',
   repeat('x', 3000), '1 day', '10.0.0.1'),
  ('apfel', 1, -0.001, -12345678901234567890.5, '1969-12-31 23:59:59.999999',
   '1969-12-31 23:59:59.999', '1969-12-31 23:59:59.999999+00', '1900-01-01', '00:00:00', '\\x',
   '[]', null, '', -0.0, 'NaN', 'calm', false, '00000', null, null, null),
  ('APFEL', -1, null, null, 'infinity', null, '-infinity', 'infinity', null, null, null, null, null,
   null, null, null, null, null, '', null, null),
  ('z''\\"', 32767, 999999999.999, 0, '2024-01-01', '2024-01-01', '2024-01-01Z', '9999-12-31',
   '23:59:59.999999', '\\x27', '"x"', null, 'abcdef', 3.4e38, 1e300, 'calm', null, '11111', 'y',
   null, '::1');
create table {0}.bare (n int);
insert into {0}.bare values (1);
"""


def address(postgres: Postgres) -> str:
    return f"postgresql://{USER}:{postgres.password}@127.0.0.1:{postgres.port}/{DATABASE}"


def tables(pipeline: Pipeline) -> dict[str, TableSummary]:
    return {known.table: known for known in pipeline.ledger().tables(pipeline.config.name)}


def checked(
    pipeline: Pipeline, table: str, database: Database, *, sample: float | None = None
) -> SourceCheck:
    known = tables(pipeline)[table]
    return comparison(pipeline, known, database, sample=sample).run(patience=10)[0]


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.spark
@pytest.mark.parametrize("events", ["json", "avro"])
def test_every_kind_of_value_agrees_and_what_the_stream_missed_is_healed(
    services: Services,
    postgres: Postgres,
    debezium: Debezium,
    tmp_path: Path,
    spark: SparkSession,
    events: str,
) -> None:
    avro = events == "avro"
    settings = avro_events(services.registry) if avro else json_events(schemas=False)
    shop = Shop(services, postgres, debezium, tmp_path, payload=f"{{format: {events}}}")
    shop.execute(KINDS.format(shop.schema))
    shop.change(1, 200)
    shop.follow(settings)
    shop.change(2, 200)
    shop.arrived()
    pipeline = shop.pipeline()
    assert pipeline.run(trigger=NOW, spark=spark).counts.balanced
    database = connect(parse_address(address(postgres)))
    for table in ("kinds", "orders", "lines", "papers", "cleared"):
        check = checked(pipeline, f"{shop.schema}_{table}", database)
        assert check.agrees, check
        assert check.source_rows == check.lake_rows > 1
        assert check.source_checksum == check.lake_checksum
    kinds = f"{shop.schema}_kinds"
    assert set(checked(pipeline, kinds, database).not_compared) <= {"span", "d"}
    # nobody follows the database: what happens now is lost to the stream
    debezium.forget(shop.name)
    shop.execute(
        "update kinds set n = 7.25, big = null where name = 'apfel';"
        "delete from kinds where name = 'APFEL';"
        "insert into kinds (name, no, doc, moment) values ('new', 5, '{}', '2024-05-05Z');"
    )
    healed_in(pipeline, kinds, database, spark)
    # a whole table again, of which nothing is known any more
    shop.execute("update orders set customer = 'all of them', extra = null")
    known = tables(pipeline)[f"{shop.schema}_orders"]
    with pipeline.open(spark, lane=LANE) as context:
        count, check = read_again(
            context, known, comparison(pipeline, known, database), database, patience=10
        )
    assert check.agrees, check
    assert count == check.source_rows
    database.close()


def healed_in(pipeline: Pipeline, table: str, database: Database, spark: SparkSession) -> None:
    """Heal a table, with a crash in the middle, and compare it again."""
    known = tables(pipeline)[table]
    compared = comparison(pipeline, known, database)
    check, wrong, moment = compared.run(patience=10)
    assert (check.missing, check.extra, check.different) == (1, 1, 1), check
    with pytest.MonkeyPatch.context() as patch, pipeline.open(spark, lane=LANE) as context:
        patch.setattr(batch, "publish_all", _crash)
        with pytest.raises(RuntimeError):
            heal(context, known, compared, wrong, moment, address=database.address)
    with pipeline.open(spark, lane=LANE) as context:
        assert finish(context) == 1
        assert finish(context) == 0
    log = Ledger(pipeline.lake).batches(pipeline.config.name)[-1]
    assert (log.lane, log.counts.read, log.counts.written) == ("reads", 3, 3)
    assert checked(pipeline, table, database).agrees


def _crash(*_: object, **__: object) -> None:
    raise RuntimeError("the process is gone")
