"""`/api/lineage`: from topics over pipelines to tables, and from tables to those made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from distributary.model.table import Role
from distributary.observe.status.health import TableHealth
from distributary.observe.status.status import PipelineStatus
from distributary.web.answers import Reads, text, whole
from distributary.web.reading import LakeReader

_BATCHES = 20
"""The batches whose ranges name the sources: all partitions are rarely in one."""
_MOST_SOURCES = 50
_FEW, _MOST = 30, 200
_ROLES = tuple(Role)


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""

    def lineage(request: Request) -> dict[str, Any]:
        wanted = (text(request, "q") or "").strip().casefold()
        most = whole(request, "size", _FEW, low=1, high=_MOST)
        tables: defaultdict[str, list[TableHealth]] = defaultdict(list)
        for each in lake.health():
            tables[each.table.pipeline].append(each)
        return {
            "now": datetime.now(UTC),
            "lake": lake.lake,
            "q": wanted,
            "pipelines": [
                _pipeline(lake, status, tables[status.name], wanted, most)
                for status in lake.status().pipelines
            ],
        }

    return {"/api/lineage": lineage}


def _pipeline(
    lake: LakeReader,
    status: PipelineStatus,
    tables: Sequence[TableHealth],
    wanted: str,
    most: int,
) -> dict[str, Any]:
    sources = _sources(lake, status.name)
    shared = [each for each in tables if not each.table.type]
    families: defaultdict[str, list[TableHealth]] = defaultdict(list)
    for each in tables:
        if each.table.type:
            families[each.table.type].append(each)
    fitting = [name for name in sorted(families) if _fits(wanted, name, families[name])]
    return {
        "name": status.name,
        "state": status.state,
        "sources": sources[:_MOST_SOURCES],
        "all_sources": len(sources),
        "shared": [_table(each) for each in _ordered(shared)],
        "families": [
            {"type": name, "tables": [_table(each) for each in _ordered(families[name])]}
            for name in fitting[:most]
        ],
        "all_families": len(fitting),
    }


def _sources(lake: LakeReader, pipeline: str) -> list[str]:
    """Return the topics, tables or folders that the newest batches have read."""

    def make() -> list[str]:
        batches = lake.ledger.batches(pipeline, lane="stream", last=_BATCHES)
        return sorted({one.topic for batch in batches for one in batch.ranges})

    return lake.remember(("sources", pipeline), "batches", make=make)


def _fits(wanted: str, name: str, tables: Sequence[TableHealth]) -> bool:
    return wanted in name.casefold() or any(wanted in t.table.table.casefold() for t in tables)


def _ordered(tables: Sequence[TableHealth]) -> list[TableHealth]:
    """Return the tables in the order in which rows reach them."""
    return sorted(tables, key=lambda each: (_ROLES.index(Role(each.table.role)), each.table.table))


def _table(health: TableHealth) -> dict[str, Any]:
    known = health.table
    return {
        "table": known.table,
        "role": known.role,
        "rows": known.rows,
        "health": health.health,
        "last_commit": known.last_commit,
    }
