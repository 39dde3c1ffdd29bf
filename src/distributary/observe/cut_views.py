"""Views of a cut for other engines: each shows a table at its version of the cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distributary.model.cut import Cut, CutTable
from distributary.model.names import quoted

Quote = Callable[[str], str]


def _spark(table: CutTable) -> str:
    return f"SELECT * FROM delta.{_ticks(table.path)} VERSION AS OF {table.version}"  # noqa: S608


def _duckdb(table: CutTable) -> str:
    place = _literal(table.path)
    return f"SELECT * FROM delta_scan({place}, version => {table.version})"  # noqa: S608


def _ticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_SELECTS: Mapping[str, tuple[Quote, Callable[[CutTable], str]]] = {
    "spark": (_ticks, _spark),
    "duckdb": (quoted, _duckdb),
}
ENGINES = (*_SELECTS, "trino")


def views(cut: Cut, engine: str, *, schema: str = "") -> list[str]:
    """Return a statement for each table of a cut that has a version.

    The views are named as the tables. Trino reads tables by the names that its catalog has for
    them, in `schema`, and its views are in a schema `cut` beside it.
    """
    tables = [table for table in cut.tables if table.version is not None]
    if engine == "trino":
        place = quoted(schema or "default")
        return [
            f"CREATE OR REPLACE VIEW cut.{quoted(table.table)} AS SELECT * FROM "  # noqa: S608
            f"{place}.{quoted(table.table)} FOR VERSION AS OF {table.version};"
            for table in tables
        ]
    quote, select = _SELECTS[engine]
    prefix = f"{quote(schema)}." if schema else ""
    return [
        f"CREATE OR REPLACE VIEW {prefix}{quote(table.table)} AS {select(table)};"
        for table in tables
    ]
