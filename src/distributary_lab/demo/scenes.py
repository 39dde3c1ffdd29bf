"""What the demos show: events of many games, lists of orders, a database that changes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.cli.command.output import Paper, Words, counted, number, size, styled
from distributary.cli.command.verb import Invocation
from distributary.cli.inspect.status import kinds
from distributary.config.lake import Tables
from distributary.delta.tables import open_table, read_rows
from distributary.engine.kill_points import KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.table_book import log_of, source_table
from distributary.model.manifest import Counts
from distributary.model.names import propose
from distributary.model.table import ChangeKind, Role
from distributary.observe.deadletters import DeadLetters
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.log_format import listed
from distributary.observe.status.health import with_measures
from distributary.operations.repair.verify_table import verify_table
from distributary.registry.folder import FileRegistry
from distributary_lab.demo.play import DemoFolder, DemoResult, Feed, Scene, added_later, draw_tables
from distributary_lab.simulate.base import DeltaSink, ReferencedRegistry, Round, Sent, Sink, deliver
from distributary_lab.simulate.cdc.datastream_files import CdcSent, FileStream, write_round
from distributary_lab.simulate.cdc.script import ChangeModel
from distributary_lab.simulate.cdc.shapes import (
    CHAOS,
    Carried,
    CdcPlan,
    Feature,
    avro_name,
    canonical,
)
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from distributary_lab.simulate.orders import OrdersPlan, stream_orders

_FIXED_TABLES = ("bronze_events", "unified_gold", "dead_letters")
_EMPTY_LISTS = 3
_MERGING = (KillPoint.BEFORE_MERGE, KillPoint.BEFORE_AGGREGATES)
_MOMENTS = tuple(moment for moment in KillPoint if moment not in _MERGING)


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
        self._parts.append(deliver([each], sink=self._sink))
        self.messages = self.sent.messages
        return True

    @property
    def sent(self) -> Sent:
        """Return the number of records that were sent so far."""
        return Sent.total(self._parts)


@dataclass(frozen=True)
class RecordScene(Scene):
    """Records with schemas of a registry."""

    rounds: Callable[[ReferencedRegistry], Iterator[Round]]
    """Registers and gives one round after the other."""
    example: int
    """The offset of a record that is worth being looked for."""

    @contextmanager
    def open(self, call: Invocation, folder: DemoFolder) -> Iterator[RoundFeed]:
        """Start the feed of the demo, with a broker and a registry if it needs them."""
        if not self.kafka:
            folder.write_file()
            registry = FileRegistry(folder.schemas, durable=False)
            yield RoundFeed(self.rounds(registry), DeltaSink(folder.source))
            return
        from distributary_lab.services.servers import ensure_artifacts
        from distributary_lab.services.services import Services
        from distributary_lab.simulate.kafka_sink import KafkaTarget, open_outlet

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

    def gather(
        self, folder: DemoFolder, feed: RoundFeed, counts: Counts, *, took: str
    ) -> DemoResult:
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

        return DemoResult(
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
    """Build the scene of wrapped events of many games."""
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


# Change data: a database changes while a pipeline follows it, embedded.

_NUMBERS = (Carried.DECIMAL, Carried.NUMBER)
_DEAD_LETTERS = "dead_letters"
_ROUNDS = 7
"""One more than there are moments at which it can be killed."""
_ROUND = timedelta(minutes=2)
_STORY = frozenset(
    {
        Feature.KEY_CHANGES,
        Feature.BURSTS,
        Feature.LATE_UPDATES,
        Feature.STALE_BACKFILLS,
        Feature.NEW_COLUMNS,
        Feature.NEW_TABLES,
        Feature.DUPLICATES,
        Feature.OUT_OF_ORDER,
        Feature.LATE_FILES,
    }
)
"""The difficulties of every demo; --chaos adds all others."""


class ChangeFeed(Feed):
    """Files of changes, round by round."""

    def __init__(self, plan: CdcPlan, folder: Path) -> None:
        self.stream = FileStream(plan)
        self._rounds, self._folder = self.stream.rounds(), folder

    def next(self) -> bool:
        """Write one more round; False when there is none."""
        each = next(self._rounds, None)
        if each is None:
            return False
        # what is read meanwhile is counted as sent, and what comes again is counted again
        self.messages += sum(len(file.events) for file in each.files)
        write_round(each, self._folder)
        return True


@dataclass(frozen=True)
class ChangesScene(Scene):
    """Shows what became of the changes of a database."""

    plan: CdcPlan

    @contextmanager
    def open(self, call: Invocation, folder: DemoFolder) -> Iterator[ChangeFeed]:
        """Start the feed of the demo, with a broker and a registry if it needs them."""
        folder.write_file()
        folder.source.mkdir(exist_ok=True)
        yield ChangeFeed(self.plan, folder.source)

    def gather(
        self, folder: DemoFolder, feed: ChangeFeed, counts: Counts, *, took: str
    ) -> DemoResult:
        """Everything from the lake, against the logs of the tables and against the database."""
        stream, ledger, sent = feed.stream, Ledger(str(folder.path)), feed.stream.sent()
        known = with_measures(str(folder.path), ledger.tables(self.subject))
        tables = _tables(folder, ledger, known, stream)
        wrong = [table.table for table in tables if not table.is_right]
        about = f"; not what they should be: {listed(wrong)}" if wrong else ""
        # every event is in its log once, and every table is what the database is
        wanted = Counts(sent.events, sent.distinct, skipped=sent.duplicates)
        logs = {table.type: table.events for table in tables}
        commands = ["status", "verify --all"]
        if example := _example(folder, tables, stream):
            table, key = example
            commands += [f"trace {table} {key}", f"rebuild {table} --dry-run"]
        return DemoResult(
            not wrong and counts == wanted and logs == sent.per_table,
            f"sent were {sent.distinct:,} events and {sent.duplicates:,} copies{about}",
            commands,
            {"redelivered": sent.duplicates, "tables": [asdict(table) for table in tables]},
            lambda paper: _draw(paper, tables, sent, took),
        )


def changes_scene(*, tables: int, events: int, seed: int, chaos: bool) -> ChangesScene:
    """Build the scene of a database whose changes began some minutes ago."""
    plan = CdcPlan(
        tables=tables,
        events=events,
        rounds=_ROUNDS,
        seed=seed,
        features=CHAOS if chaos else _STORY,
        start=datetime.now(UTC) - _ROUNDS * _ROUND,
    )
    title = (
        f"{counted(plan.tables, 'table')}, {counted(plan.events, 'change')} in "
        f"{counted(plan.rounds, 'round')}; rows are read, inserted, updated and deleted, "
        "columns and tables appear"
    )
    naming, reserved = Tables(each="{database}_{table}"), frozenset({_DEAD_LETTERS})
    claims = [table.shape.claim for table in ChangeModel(plan).tables]
    found = [source_table(naming, claim.text, reserved=reserved) for claim in claims]
    names = [each.wanted.proposals[0].first for each in found]
    made = (_DEAD_LETTERS, *(table for name in names for table in (name, log_of(name))))
    return ChangesScene("cdc", title, "datastream", made, False, tuple(KillPoint), plan)


@dataclass(frozen=True, slots=True)
class TableInLake:
    """One table of the source: what it has there, and what of that is in the lake."""

    rows: int
    wrong: int
    """Rows that are missing, too many, or different."""


def _held(model: ChangeModel, lake: Path, tables: Mapping[str, str]) -> dict[str, TableInLake]:
    """Return the rows of each table with a key, by its claim; `tables` has names in the lake."""
    kinds = {
        table.shape.claim: {name: column.carried for name, column in table.columns.items()}
        for table in model.seen
    }
    found: dict[str, TableInLake] = {}
    for claim, expected in model.truth().items():
        columns = kinds[claim]
        name = tables.get(claim.text)
        table = open_table(str(lake / name)) if name else None
        rows = [] if table is None else read_rows(table).to_pylist()
        there = Counter(_texts(rows, columns, named=avro_name))
        wanted = Counter(_texts(expected, columns, named=str))
        wrong = (there - wanted).total() + (wanted - there).total()
        found[claim.text] = TableInLake(len(expected), wrong)
    return found


def _texts(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Carried],
    *,
    named: Callable[[str], str],
) -> Iterator[str]:
    for row in rows:
        values = [_plain(row.get(named(name)), carried) for name, carried in columns.items()]
        yield json.dumps(values, ensure_ascii=False)


def _plain(value: Any, carried: Carried) -> Any:
    if value is None:
        return None
    if carried in _NUMBERS:
        # the same number, however many zeros are behind its point
        return format(Decimal(str(value)).normalize(), "f")
    if carried is Carried.JSON and isinstance(value, str):
        return json.loads(value)
    return canonical(value)


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """One table of the database, as it came to the lake."""

    type: str
    table: str
    log: str
    events: int
    rows: int | None
    """None where there is only a log."""
    changes: Mapping[str, int]
    columns_added: tuple[str, ...]
    appeared: int
    """The batch in which it was first seen."""
    agrees: bool
    """With its log."""
    truth: TableInLake | None
    """None for a table without a key."""

    @property
    def is_right(self) -> bool:
        """By the log and by the database."""
        return self.agrees and (self.truth is None or not self.truth.wrong)


def _draw(paper: Paper, tables: Sequence[ChangedTable], sent: CdcSent, took: str) -> None:
    headers = ("TABLE", "EVENTS>", "ROWS>", "DELETED>", "CHECKED", "ADDED WHILE RUNNING")
    cells = [_cells(table) for table in tables]
    draw_tables(paper, headers, cells)
    keyed = [(table, table.truth) for table in tables if table.truth is not None]
    agree = sum(table.agrees for table, _ in keyed)
    true = sum(table.is_right for table, _ in keyed)
    rows = sum(truth.rows for _, truth in keyed)
    copies = counted(sent.duplicates, "re-delivery", "re-deliveries")
    changes = Counter[str]()
    for table in tables:
        changes.update(table.changes)
    paper.line(kinds(changes))
    paper.line(f"{copies} dropped, {counted(sent.late_files, 'late file')}, {took}")
    paper.line(f"{agree} of {counted(len(keyed), 'table')} agree with their logs, row by row")
    paper.line(f"{true} of {len(keyed)} are what the database holds: {counted(rows, 'row')}")


def _cells(table: ChangedTable) -> list[Words]:
    new = [f"the table, in batch {table.appeared}"] if table.appeared else []
    columns = [listed((f"+ {name}" for name in table.columns_added), most=3)]
    checked = styled("log only" if table.truth is None else "agrees", "green")
    if not table.is_right:
        wrong = "differs from its log" if not table.agrees else f"{table.truth} is not true"
        checked = styled(wrong, "bold red")
    return [
        table.table,
        number(table.events),
        number(table.rows),
        number(table.changes.get("delete", 0)),
        checked,
        ", ".join(filter(None, new + columns)),
    ]


def _tables(
    folder: DemoFolder, ledger: Ledger, known: Sequence[TableSummary], stream: FileStream
) -> tuple[ChangedTable, ...]:
    pipeline = Pipeline.load(folder.file)
    history = ledger.schema_history(pipeline=folder.scene.subject)
    appeared: dict[str, int] = {}
    for row in history:
        appeared[row.type] = min(row.batch, appeared.get(row.type, row.batch))
    added: dict[str, list[str]] = defaultdict(list)
    for row in added_later(history):
        added[row.table].append(row.column)
    logs = {t.type: t for t in known if t.role == Role.LOG}
    merged = {t.type: t for t in known if t.role == Role.MERGED}
    truth = _held(stream.model, folder.path, {kind: t.table for kind, t in merged.items()})
    return tuple(
        ChangedTable(
            type=kind,
            table=merged[kind].table,
            log=log.table,
            events=log.rows or 0,
            rows=merged[kind].rows,
            changes=dict(log.changes),
            columns_added=tuple(added[log.table]),
            appeared=appeared.get(kind, 0),
            agrees=verify_table(pipeline, merged[kind]).verified.agrees,
            truth=truth.get(kind),
        )
        for kind, log in sorted(logs.items(), key=lambda item: item[1].table)
        if kind in merged
    )


def _example(
    folder: DemoFolder, tables: Sequence[ChangedTable], stream: FileStream
) -> tuple[str, str] | None:
    """Return the current row with the most events, of a table with a simple key."""
    keys = {table.shape.claim.text: table.shape.key for table in stream.model.seen}
    simple = [t for t in tables if len(keys.get(t.type, ())) == 1 and t.rows]
    if not simple:
        return None
    table = next((t for t in simple if t.table.endswith("_orders")), simple[0])
    (key,) = keys[table.type]
    events, there = (_column(folder, name, key) for name in (table.log, table.table))
    counts = {each["values"]: each["counts"] for each in events.value_counts().to_pylist()}
    alive = sorted(
        there.to_pylist(),
        # a key that begins with a minus looks like an option
        key=lambda value: (str(value).startswith("-"), -counts.get(value, 0), str(value)),
    )
    return table.table, f"{key}={alive[0]}"


def _column(folder: DemoFolder, table: str, name: str) -> pa.ChunkedArray:
    found = open_table(str(folder.path / table))
    if found is None:
        return pa.chunked_array([], pa.string())
    return read_rows(found, columns=[name]).column(name)
