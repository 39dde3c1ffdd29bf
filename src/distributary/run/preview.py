"""`plan`: the tables, columns and changes that a run would make, found without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from distributary.model.expectation import Rule
from distributary.model.plan import Rejected, Route, RouteKey
from distributary.model.table import Change, Role, TablePlan
from distributary.run.checkpoint import Checkpoint
from distributary.run.parts import make_source
from distributary.run.pipeline import Pipeline
from distributary.run.planner import Planner
from distributary.stage.expectations import unfit_rules
from distributary.stage.unwrap import unwrap


@dataclass(frozen=True, slots=True)
class TablePreview:
    """What would happen to one table."""

    name: str
    new: bool
    records: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class UnfitRule:
    """A rule of `expectations` that could not be applied to a table, and why."""

    rule: str
    table: str
    why: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen if the pipeline ran now."""

    records: int = 0
    tables: tuple[TablePreview, ...] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Records that would not find a place, by error code; payloads are not decoded here."""
    unfit_rules: tuple[UnfitRule, ...] = ()
    """What would not be checked: columns that a rule names and a table does not have."""

    @property
    def changes_something(self) -> bool:
        """Whether a table would be created or changed."""
        return any(table.new or table.changes for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "records": self.records,
            "dead_letters": dict(self.dead_letters),
            "unfit_rules": [asdict(unfit) for unfit in self.unfit_rules],
            "tables": [
                {
                    "name": t.name,
                    "new": t.new,
                    "records": t.records,
                    "changes": [
                        {"kind": str(c.kind), "column": c.column, "before": c.before}
                        | {"after": c.after, "action": c.action, "text": c.describe()}
                        for c in t.changes
                    ],
                }
                for t in self.tables
            ],
        }


def preview(pipeline: Pipeline) -> Preview:
    """Look at what the source holds beyond the pipeline's position, as one batch would see it."""
    planner = pipeline.planner(trial=True)
    keys: Counter[RouteKey] = Counter()
    dead: Counter[str] = Counter()
    total = 0
    for raw in _unread(pipeline):
        total += raw.num_rows
        unwrapped = unwrap(raw, planner.catalog())
        dead.update(str(letter.code) for letter in unwrapped.letters)
        groups = planner.groups(raw, unwrapped)
        keys.update(dict(zip(groups.keys, groups.counts(), strict=True)))
    return _summary(planner, keys, dead, total)


def _unread(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    source = make_source(pipeline.config)
    checkpoint = Checkpoint.find(pipeline.checkpoint_folder, pipeline=pipeline.config.name)
    if checkpoint is None:
        yield from source.peek(source.first())
        return
    manifests = checkpoint.manifests()
    newest = manifests.read(manifests.newest()) if manifests.newest() >= 0 else None
    start = newest.source_state if newest else checkpoint.known_first_position() or source.first()
    yield from source.peek(start)


def _summary(planner: Planner, keys: Counter[RouteKey], dead: Counter[str], total: int) -> Preview:
    records: Counter[str] = Counter()
    catalog = planner.catalog()
    for key, count in keys.items():
        route = catalog.routes[key]
        if isinstance(route, Rejected):
            dead[str(route.code)] += count
        elif isinstance(route, Route):
            records[route.table] += count
    pending = planner.book.take_pending()
    names = sorted(set(records) | set(pending.changes) if total else set())
    tables = tuple(
        TablePreview(
            name=name,
            new=not planner.book.tables[name].exists,
            records=records[name],
            changes=tuple(pending.changes.get(name, ())),
        )
        for name in names
        if name
    )
    plans = [planner.book.tables[name] for name in names if name]
    return Preview(total, tables, dict(dead), tuple(_unfit(catalog.expectations, plans)))


def _unfit(rules: tuple[Rule, ...], tables: Iterable[TablePlan]) -> Iterator[UnfitRule]:
    for table in tables if rules else ():
        if table.role in (Role.EACH, Role.LOG):
            found = unfit_rules(rules, table)
            yield from (UnfitRule(rule, table.name, why) for rule, why in found.items())
