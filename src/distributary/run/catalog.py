"""Tables in Spark's catalog, so that `SELECT * FROM games.silver_chess` works.

A plain Parquet table is a view: a catalog would keep its own copy of the columns and partitions,
while a view looks at the folder each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import SparkSession

from distributary.model.table import TablePlan
from distributary.observe.events import BatchSettled, Event
from distributary.route.naming import quote_sql
from distributary.run.context import RunContext


def register_tables(context: RunContext) -> None:
    """Register what exists now and, batch by batch, what is created later."""
    database = context.config.lake.database
    if database is None:
        return
    context.spark.sql(f"CREATE DATABASE IF NOT EXISTS {quote_sql(database)}")
    known: set[str] = set()

    def register(event: Event) -> None:
        if isinstance(event, BatchSettled):
            fresh = [t for t in context.planner.book.tables.values() if t.name not in known]
            known.update(_register(context.spark, database, fresh))

    context.bus.subscribe(register)
    known.update(_register(context.spark, database, context.planner.book.tables.values()))


def _register(spark: SparkSession, database: str, tables: Iterable[TablePlan]) -> list[str]:
    done = []
    for table in tables:
        if table.exists:
            name = f"{quote_sql(database)}.{quote_sql(table.name)}"
            # the location is a folder of the lake whose last part is a name of our making
            spark.sql(_view(name, table) if table.format == "parquet" else _table(name, table))
            done.append(table.name)
    return done


def _table(name: str, table: TablePlan) -> str:
    place = table.path.replace("\\", "\\\\").replace("'", "\\'")
    return f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{place}'"


def _view(name: str, table: TablePlan) -> str:
    literal = re.sub(r"([\\\[\]{}*?])", r"\\\1", table.path)
    columns = f"SELECT * FROM parquet.{quote_sql(literal)}"  # noqa: S608 - quoted
    return f"CREATE VIEW IF NOT EXISTS {name} WITH SCHEMA EVOLUTION AS {columns}"
