"""The demos of records with schemas: wrapped events of many games, and lists of orders."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributary.cli.command.output import Paper, counted, number, size
from distributary.cli.command.verb import Invocation
from distributary.cli.demo.play import DemoFolder, Feed, Result, Scene, added_later, draw_tables
from distributary.engine.parts import Moment
from distributary.lab.simulate.base import ArrowSink, DeltaSink, Registry, Round, Sent, Sink
from distributary.lab.simulate.game_records import GamesPlan
from distributary.lab.simulate.games import stream_rounds
from distributary.lab.simulate.orders import OrdersPlan, stream_orders
from distributary.model.manifest import Counts
from distributary.model.names import propose
from distributary.model.table import ChangeKind, Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.ledger import Ledger
from distributary.registry.folder import FileRegistry

_FIXED_TABLES = ("bronze_events", "unified_gold", "dead_letters")
_EMPTY_LISTS = 3
_MOMENTS = tuple(moment for moment in Moment if moment is not Moment.BEFORE_MERGE)


class RoundFeed(Feed):
    """Registers the schemas of a round and sends its records."""

    def __init__(self, rounds: Iterator[Round], sink: Sink) -> None:
        self._rounds, self._sink = rounds, sink
        self._parts: list[Sent] = []

    def next(self) -> bool:
        """Send one more round; False when there is none."""
        each = next(self._rounds, None)
        if each is None:
            return False
        if isinstance(self._sink, ArrowSink):
            self._sink.write_arrow(each.arrow())
        else:
            self._sink.write(each.messages())
        self._parts.append(each.sent())
        self.messages = self.sent.messages
        return True

    @property
    def sent(self) -> Sent:
        """Everything so far."""
        return Sent.total(self._parts)


@dataclass(frozen=True)
class RecordScene(Scene):
    """Records with schemas of a registry."""

    rounds: Callable[[Registry], Iterator[Round]]
    """Registers and gives one round after the other."""
    example: int
    """The offset of a record that is worth being looked for."""

    @contextmanager
    def open(self, call: Invocation, folder: DemoFolder) -> Iterator[RoundFeed]:
        """What the demo sends, with a broker and a registry where it needs them."""
        if not self.kafka:
            folder.write_file()
            registry = FileRegistry(folder.schemas, durable=False)
            yield RoundFeed(self.rounds(registry), DeltaSink(folder.source))
            return
        from distributary.lab.services.servers import ensure_artifacts
        from distributary.lab.services.services import Services
        from distributary.lab.simulate.kafka import KafkaTarget, open_outlet

        # outside of the services: fetching takes long the first time, and should be seen
        ensure_artifacts(call.out.note)
        call.out.note("starting a broker and a registry")
        with (
            tempfile.TemporaryDirectory(prefix="distributary-demo-") as home,
            Services(Path(home)) as services,
        ):
            folder.write_file(kafka=services.kafka, registry=services.registry)
            target = KafkaTarget(
                topic=self.topic, bootstrap_servers=services.kafka, registry_url=services.registry
            )
            call.out.note(f"broker {services.kafka}, registry {services.registry}")
            # they go as a whole: there will be nothing to clean
            with open_outlet(target, noted=False) as outlet:
                yield RoundFeed(self.rounds(outlet.registry), outlet.sink)
            call.out.note("stopping them")

    def gather(self, folder: DemoFolder, feed: RoundFeed, counts: Counts, *, took: str) -> Result:
        """Everything from the ledger, as any other command would read it."""
        pipeline, ledger, sent = self.subject, Ledger(str(folder.path)), feed.sent
        tables = ledger.tables(pipeline)
        history = ledger.schema_history(pipeline=pipeline)
        path = next((t.path for t in tables if t.role == "dead_letters"), None)
        reasons = DeadLetters(path).reasons(pipeline=pipeline) if path else ()
        letters = {reason.code: reason.count for reason in reasons}
        schema_changes = sum(row.kind in set(ChangeKind) for row in history)
        added = Counter(row.table for row in added_later(history))
        rows = sum(table.rows or 0 for table in tables if table.role == Role.EACH)
        exact = counts == Counts(sent.messages, sent.good, sent.bad) and rows == sent.rows
        data = {
            "topic": self.topic,
            "rows": sent.rows,
            "tables": [
                {
                    "name": t.table,
                    "role": t.role,
                    "type": t.type,
                    "rows": t.rows,
                    "columns": t.columns,
                    "columns_added": added[t.table],
                    "schema_ids": t.schema_ids,
                }
                for t in tables
            ],
            "dead_letters": letters,
            "schema_changes": schema_changes,
        }

        def draw(paper: Paper) -> None:
            cells = [
                (
                    t.table,
                    number(t.rows),
                    number(t.columns),
                    f"+ {added[t.table]}" if added[t.table] else "",
                    size(t.bytes),
                )
                for t in tables
            ]
            headers = ("TABLE", "ROWS>", "COLUMNS>", "ADDED WHILE RUNNING", "SIZE>")
            draw_tables(paper, headers, cells)
            for code, count in sorted(letters.items()):
                paper.line(f"{counted(count, 'dead letter')}: {code}")
            paper.line(f"{counted(schema_changes, 'schema change')} in {took}")

        return Result(
            exact and letters == sent.bad_by_code,
            f"sent were {sent.good:,} good and {sent.bad:,} bad records",
            ("status", "dlq list", f"trace {self.topic}/0/{self.example}"),
            data,
            draw,
        )


def games_scene(
    *,
    games: int = 20,
    versions: int = 5,
    records: int = 100,
    bad: int = 3,
    seed: int = 999,
    kafka: bool = False,
) -> RecordScene:
    """Wrapped events of many games."""
    plan = GamesPlan(games=games, versions=versions, records=records, bad=bad, seed=seed)
    title = (
        f"{counted(plan.games, 'game')}, {counted(plan.versions, 'schema version')} each, "
        f"{counted(plan.records, 'record')} per version, {counted(plan.bad, 'bad record')}"
    )
    each = (propose("silver_{type}", type=name).first for name in plan.names)
    return RecordScene(
        "games",
        title,
        "wrapper",
        (*_FIXED_TABLES, *each),
        kafka,
        _MOMENTS,
        lambda registry: stream_rounds(plan, registry=registry),
        example=min(42, plan.good - 1),
    )


def orders_scene(
    *, versions: int = 2, records: int = 100, bare: int = 1, seed: int = 999
) -> RecordScene:
    """Lists of orders, some without the header that says what they are."""
    plan = OrdersPlan(versions=versions, records=records, empty=_EMPTY_LISTS, bare=bare, seed=seed)
    title = (
        f"{counted(plan.versions * plan.records, 'list')} of orders in "
        f"{counted(plan.versions, 'schema version')}, {counted(plan.empty, 'empty list')}, "
        f"{counted(bare, 'message')} without the registry's header"
    )
    return RecordScene(
        "orders",
        title,
        plan.topic,
        (*_FIXED_TABLES, propose("{topic}", topic=plan.topic).first),
        True,
        _MOMENTS,
        lambda registry: stream_orders(plan, registry=registry),
        # the first is never an empty list
        example=0,
    )
