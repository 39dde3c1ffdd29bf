"""Names for the shell's Tab key: quick, and silent about whatever is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from typer import Context

from distributary.errors import ErrorCode
from distributary.observe import layout

_PLACES = ("./lake", "./distributary-demo", ".")
_TABLES = 'SELECT DISTINCT "table" AS name FROM rows'
_LABELS = "SELECT DISTINCT schema AS name FROM rows"
_LETTERS = "SELECT DISTINCT path AS name FROM rows WHERE role = 'dead_letters'"
_NEWEST = "SELECT id AS name FROM rows WHERE status = 'open' ORDER BY last_seen DESC LIMIT 100"
_REASONS = "SELECT DISTINCT error_code AS name FROM rows WHERE status = 'open'"
_FIRST_REASON = ErrorCode.NULL_VALUE


def complete_tables(ctx: Context, incomplete: str) -> list[str]:
    """Tables of the lake that is meant."""
    return _starting(incomplete, _names(layout.ledger_table(_lake(ctx), "tables"), _TABLES))


def complete_subjects(ctx: Context, incomplete: str) -> list[str]:
    """Subjects that records were seen of, or those of a folder; no registry is asked."""
    place = str(ctx.params.get("registry") or "")
    if place:
        return _starting(incomplete, _subfolders(Path(place, "subjects")))
    lake = _lake(ctx)
    labels = [] if "://" in lake else _names(layout.ledger_table(lake, "schemas"), _LABELS)
    return _starting(incomplete, {label.rpartition(" v")[0] or label for label in labels})


def complete_schemas(ctx: Context, incomplete: str) -> list[str]:
    """Tables and subjects."""
    found = complete_tables(ctx, incomplete) + complete_subjects(ctx, incomplete)
    return sorted(set(found))


def complete_letters(ctx: Context, incomplete: str) -> list[str]:
    """The newest of the open dead letters, by their ids."""
    return _starting(incomplete, _in_letters(ctx, _NEWEST))


def complete_reasons(ctx: Context, incomplete: str) -> list[str]:
    """Reasons of the open dead letters, else all that there are."""
    found = _in_letters(ctx, _REASONS)
    codes = list(ErrorCode)
    return _starting(incomplete, found or map(str, codes[codes.index(_FIRST_REASON) :]))


def complete_pipelines(ctx: Context, incomplete: str) -> list[str]:
    """Pipelines that have run in the lake that is meant."""
    return _starting(incomplete, _subfolders(Path(layout.pipelines(_lake(ctx)))))


def _lake(ctx: Context) -> str:
    named = ctx.params.get("lake") or os.environ.get("DISTRIBUTARY_LAKE")
    usual = (place for place in _PLACES if Path(place, layout.HOME).is_dir())
    return str(named or next(usual, _PLACES[0]))


def _in_letters(ctx: Context, sql: str) -> set[str]:
    folders = _names(layout.ledger_table(_lake(ctx), "tables"), _LETTERS)
    return {name for folder in folders for name in _names(folder, sql)}


def _subfolders(folder: Path) -> list[str]:
    try:
        # a name with a digest in it is not what anybody would type
        return [path.name for path in folder.iterdir() if "~" not in path.name]
    except OSError:
        return []


def _names(table: str, sql: str) -> list[str]:
    try:
        return _read(table, sql)
    except Exception:
        # a shell that prints a traceback into what is being typed helps nobody
        return []


def _read(table: str, sql: str) -> list[str]:
    # the whole of `observe` would take longer to import than a person waits for a Tab
    from deltalake import DeltaTable, QueryBuilder

    rows = QueryBuilder().register("rows", DeltaTable(table)).execute(sql).read_all()
    return [str(name) for name in rows["name"].to_pylist()]


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
