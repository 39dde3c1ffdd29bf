"""Tables in Spark's catalog, so that `SELECT * FROM games.silver_chess` works.

A plain Parquet table is a view: a catalog would keep its own copy of the columns and partitions,
while a view looks at the folder each time. A Delta table is an entry with a location. The first is
made with SQL, which reads the table's log and takes a quarter of a second; the others are entries
like it with another name and location, which takes milliseconds: there may be a thousand of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.config.alerts import Lineage
from distributary.config.base import hide_credentials
from distributary.config.engine import Trigger, TriggerKind
from distributary.config.pipeline import PipelineConfig
from distributary.engine.parts import RunContext
from distributary.errors import DistributaryError, ErrorCode, SetupError
from distributary.model.names import quote_sql
from distributary.model.table import Role, TablePlan
from distributary.observe.events import BatchSettled, Event
from distributary.observe.lineage import Dataset, inputs
from distributary.store.base import is_remote

if TYPE_CHECKING:
    from distributary.observe.lineage import LineageRun


_NAME, _STORAGE, _SCHEMA, _PARTITIONS = 0, 2, 3, 5
"""Where these stand among the fields of Spark's `CatalogTable`."""


def register_tables(context: RunContext) -> None:
    """Register what exists now and, batch by batch, what is created later."""
    database = context.config.lake.database
    if database is None:
        return
    context.spark.sql(f"CREATE DATABASE IF NOT EXISTS {quote_sql(database)}")
    cdc = context.config.cdc
    # a log that is not kept is nothing to look at
    hidden = Role.LOG if cdc is not None and not cdc.log else None
    known: set[str] = set()

    def fresh() -> list[TablePlan]:
        tables = context.planner.book.tables.values()
        return [t for t in tables if t.name not in known and t.role is not hidden]

    def register(event: Event) -> None:
        if isinstance(event, BatchSettled):
            known.update(_register(context.spark, database, fresh()))

    context.bus.subscribe(register)
    known.update(_register(context.spark, database, fresh()))


def _register(spark: SparkSession, database: str, tables: Iterable[TablePlan]) -> list[str]:
    done = []
    entries: _Entries | None = None
    for table in tables:
        if not table.exists:
            continue
        name = f"{quote_sql(database)}.{quote_sql(table.name)}"
        if table.format == "parquet":
            spark.sql(_view(name, table))
        elif entries is None:
            # the location is a folder of the lake whose last part is a name of our making
            spark.sql(_table(name, table))
            entries = _Entries.like(spark, database, table.name)
        elif not entries.add(table):
            spark.sql(_table(name, table))
        done.append(table.name)
    return done


class _Entries:
    """Makes catalog entries like one that is there already."""

    def __init__(self, spark: SparkSession, database: str, template: Any) -> None:
        self._jvm = _jvm(spark)
        self._catalog: Any = _session_catalog(spark)
        self._database = database
        self._template = template
        if template is not None:
            self._parts = _parts(template)
            self._storage = _parts(template.storage())

    @classmethod
    def like(cls, spark: SparkSession, database: str, table: str) -> _Entries:
        """Entries like this table's; none at all with a catalog that is not Spark's own."""
        try:
            name = _identifier(_jvm(spark), database, table)
            return cls(spark, database, _session_catalog(spark).getTableMetadata(name))
        except (Py4JError, PySparkException):
            return cls(spark, database, None)

    def add(self, table: TablePlan) -> bool:
        """Add an entry; False when that is not possible in this way."""
        if self._template is None:
            return False
        jvm = self._jvm
        place = jvm.scala.Some(jvm.java.net.URI(_uri(table.path)))
        parts = list(self._parts)
        parts[_NAME] = _identifier(jvm, self._database, table.name)
        parts[_STORAGE] = self._template.storage().copy(place, *self._storage[1:])
        # columns and partitions are in the table's own log
        parts[_SCHEMA] = jvm.org.apache.spark.sql.types.StructType()
        parts[_PARTITIONS] = parts[_SCHEMA].toSeq()
        try:
            self._catalog.createTable(self._template.copy(*parts), True, False)
        except (Py4JError, PySparkException):
            return False
        return True


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm  # noqa: SLF001 - PySpark has no public way to the catalog's own interface


def _session_catalog(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().catalog()  # noqa: SLF001 - likewise


def _identifier(jvm: Any, database: str, table: str) -> Any:
    return jvm.org.apache.spark.sql.catalyst.TableIdentifier(table, jvm.scala.Some(database))


def _parts(record: Any) -> list[Any]:
    """The fields of a Scala case class, in their order, as its `copy` takes them."""
    count = sum(name.startswith("copy$default$") for name in dir(record))
    return [getattr(record, f"copy$default${number}")() for number in range(1, count + 1)]


def _table(name: str, table: TablePlan) -> str:
    place = table.path.replace("\\", "\\\\").replace("'", "\\'")
    return f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{place}'"


def _view(name: str, table: TablePlan) -> str:
    literal = re.sub(r"([\\\[\]{}*?])", r"\\\1", table.path)
    columns = f"SELECT * FROM parquet.{quote_sql(literal)}"  # noqa: S608 - quoted
    return f"CREATE VIEW IF NOT EXISTS {name} WITH SCHEMA EVOLUTION AS {columns}"


def _uri(path: str) -> str:
    return path if is_remote(path) else Path(path).as_uri()


# A run that tells its lineage, where the pipeline file asks for it.

Mask = Callable[[str], str]


@contextmanager
def told(context: RunContext, trigger: Trigger, *, mask: Mask) -> Iterator[None]:
    """Tell the beginning, the batches and the end of a run."""
    settings = context.config.lineage
    if settings is None:
        yield
        return

    def clean(text: str) -> str:
        return mask(hide_credentials(text))

    runs = _runs(context.config, settings, trigger, clean)
    known = _inputs(context.config, (), clean)
    for run in runs:
        run.start(known)

    def listen(event: Event) -> None:
        if isinstance(event, BatchSettled):
            _settled(context, event, runs, clean)

    detach = context.bus.subscribe(listen)
    # long enough for a server that answers, and no longer for one that does not
    patience = 2 * settings.timeout.total_seconds()
    state, error = "COMPLETE", ""
    try:
        yield
    except DistributaryError as failure:
        state, error = "FAIL", f"{failure.code}: {failure.what}"
        raise
    except BaseException as failure:
        state, error = "ABORT", type(failure).__name__
        raise
    finally:
        detach()
        for run in runs:
            run.end(state, error, patience=patience)


def _settled(context: RunContext, event: BatchSettled, runs: list[LineageRun], clean: Mask) -> None:
    book = context.planner.book
    if book.origins is None:
        return
    written = [w for w in event.written if w.outcome != "parked" and w.table in book.tables]
    tables = [
        (each, (table, book.origins.of(table.name, table.role)))
        for each in written
        for table in (book.tables[each.table],)
    ]
    known = _inputs(context.config, event.topics, clean)
    for run in runs:
        run.settled(event, known, tables)


def _inputs(config: PipelineConfig, topics: tuple[str, ...], clean: Mask) -> dict[str, Dataset]:
    found = inputs(config, topics)
    return {topic: replace(each, name=clean(each.name)) for topic, each in found.items()}


def _runs(
    config: PipelineConfig, settings: Lineage, trigger: Trigger, clean: Mask
) -> list[LineageRun]:
    try:
        from openlineage.client.uuid import generate_new_uuid

        from distributary.observe.lineage import LineageRun, RunFacts, sinks
    except ImportError as error:
        raise SetupError(
            "lineage needs a package that is not installed",
            code=ErrorCode.EXTRA_MISSING,
            where="lineage",
            evidence=str(error),
            next_step="pip install 'distributary[lineage]'",
        ) from error
    facts = RunFacts(
        run_id=str(generate_new_uuid()),
        namespace=settings.namespace,
        pipeline=config.name,
        streaming=trigger.kind is not TriggerKind.AVAILABLE_NOW,
        engine=pyspark.__version__,
        every_seconds=settings.every.total_seconds(),
        clean=clean,
    )
    every = settings.every.total_seconds()
    return [LineageRun(facts, sink, every=every) for sink in sinks(settings)]
