"""The planner's part for change data: a log for each source table, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.config.cdc import Cdc
from distributary.config.pipeline import PipelineConfig
from distributary.decode.base import DecodeLimits
from distributary.decode.cache import change_decoder_for
from distributary.decode.debezium_names import Kind, schema_claim, schema_kind
from distributary.errors import DecodeError, ErrorCode, InvalidSchemaError, SchemaNotFoundError
from distributary.evolve.merge import merge
from distributary.model.change_settings import ChangeSettings
from distributary.model.plan import UNFRAMED, Rejected, Route, RouteKey
from distributary.model.record import TIMESTAMP
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Column, Role
from distributary.run.change_tables import (
    HISTORY,
    LOG,
    derived_columns,
    source_columns,
    source_table,
    spoken,
)
from distributary.run.origins import qualified
from distributary.run.schema_lookup import SchemaLookup
from distributary.run.tables import TableBook, fixed_tables, table_folder
from distributary.stage.metadata import DATE
from distributary.stage.shard import sharded_columns

_NEVER = -(2**63)


class ChangePlan:
    """Finds logs for the keys of change events, and columns for the tables made of them."""

    def __init__(
        self,
        config: PipelineConfig,
        cdc: Cdc,
        settings: ChangeSettings,
        *,
        lookup: SchemaLookup,
        book: TableBook,
        limits: DecodeLimits,
    ) -> None:
        self._config = config
        self._cdc = cdc
        self._settings = settings
        self._lookup = lookup
        self._book = book
        self._limits = limits
        self._given: dict[RouteKey, tuple[Column, ...]] = {}
        """The columns that events of a key have."""
        self._newest: dict[str, int] = {}
        """When the newest event was made whose columns a log's tables have."""

    def place(
        self, key: RouteKey, schema: WriterSchema
    ) -> tuple[Route, tuple[WriterSchema, ...]] | Rejected:
        """The log for events of a key, with room for their columns, and the schemas it takes."""
        try:
            claim = self._claim(key, schema)
            if claim is None:
                return Rejected(
                    ErrorCode.NO_SOURCE_METADATA, "no change of a row", passed_over=True
                )
            source = source_table(self._config.tables, claim, reserved=fixed_tables(self._config))
            keys = self._lookup.of_keys(key)
            decoder = change_decoder_for(schema, self._settings, self._limits, keys=keys)
        except SchemaNotFoundError as error:
            return Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, error.what)
        except (DecodeError, InvalidSchemaError) as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        columns = sharded_columns(decoder.columns) if source.shard else decoder.columns
        label = f"since {schema.label()}"
        columns = tuple(replace(c, comment=f"{c.comment}; {label}".lstrip("; ")) for c in columns)
        if self._book.origins is not None:
            topic = key.claim if schema.format is Format.AVRO and key.claim != claim else ""
            columns = tuple(qualified(columns, topic=topic, inside=spoken(claim)))
        type_name = source.wanted.type
        name = self._book.name(source.wanted, ending=LOG)
        if isinstance(name, Rejected):
            return name
        log = name + LOG
        refused = self._book.evolve(log, type_name, schema, columns, role=Role.LOG)
        if refused is not None:
            return refused
        self._given[key] = columns
        self._follow(log, type_name, columns)
        route = Route(
            log,
            type_name,
            schema.id,
            schema.message,
            shard=source.shard,
            key_schema_id=UNFRAMED if keys is None else keys.id,
        )
        return route, (schema, *([] if keys is None else [keys]))

    def follow_newest(
        self, times: Mapping[RouteKey, int], routes: Mapping[RouteKey, Route | Rejected]
    ) -> bool:
        """Give tables the columns of their newest events, where that is asked for.

        Files come in any order: what tells is when the source made the newest event of each key.
        True if that changed a table.
        """
        if self._cdc.evolution != "overwriteSchema":
            return False
        changed = False
        for key, time in sorted(times.items(), key=lambda item: (item[1], item[0])):
            route = routes.get(key)
            if not isinstance(route, Route) or time < self._seen_until(route.table):
                continue
            self._newest[route.table] = time
            changed |= self._overwrite(route.table, route.type, self._given.get(key, ()))
        return changed

    def _claim(self, key: RouteKey, schema: WriterSchema) -> str | None:
        """The source's table; None for what is about none."""
        if self._settings.format == "datastream" or schema.format is Format.JSON:
            return key.claim
        return schema_claim(schema, key.claim) if schema_kind(schema) is Kind.CHANGE else None

    def _follow(self, log: str, type_name: str, columns: tuple[Column, ...]) -> None:
        """The tables that are made of a log, with the columns that they shall have."""
        table = log.removesuffix(LOG)
        everything = self._book.tables[log].columns
        known = self._book.planned(table, Role.MERGED, type_name)
        if known is None and self._cdc.evolution == "overwriteSchema":
            self._overwrite(log, type_name, columns)
        elif known is None or self._cdc.evolution == "mergeSchema":
            self._give(table, Role.MERGED, type_name, everything)
        if not self._cdc.history:
            return
        known = self._book.planned(table + HISTORY, Role.HISTORY, type_name)
        if known is None or self._cdc.evolution != "none":
            # what a row was is not forgotten, whatever its table is now
            self._give(table + HISTORY, Role.HISTORY, type_name, everything)

    def _overwrite(self, log: str, type_name: str, columns: tuple[Column, ...]) -> bool:
        """Of the log's columns, those that a schema has a part in."""
        have = self._book.tables[log].columns
        fills = merge(have, columns, self._config.evolution).fills
        own = {fill.target for fill in fills if fill.source}
        wanted = tuple(column for column in have if column.name in own)
        return self._give(log.removesuffix(LOG), Role.MERGED, type_name, wanted)

    def _give(self, name: str, role: Role, type_name: str, columns: Iterable[Column]) -> bool:
        metadata = {column.name for column in (*self._book.metadata, DATE)}
        source = source_columns(tuple(columns), metadata)
        return self._book.follow(name, role, type_name, derived_columns(source, role, self._cdc))

    def _seen_until(self, log: str) -> int:
        if log not in self._newest:
            self._newest[log] = _newest_row(table_folder(self._config, log.removesuffix(LOG)))
        return self._newest[log]


def _newest_row(path: str) -> int:
    """When the newest row of a merged table was made, as its log tells; else before all times."""
    try:
        facts = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    except (DeltaError, OSError):
        return _NEVER
    name = "max._source_ts"
    if name not in facts.column_names:
        return _NEVER
    newest = pc.max(facts.column(name).cast(TIMESTAMP)).cast(pa.int64()).as_py()
    return _NEVER if newest is None else int(newest)
