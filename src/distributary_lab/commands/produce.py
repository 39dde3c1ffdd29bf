"""`produce`: simulated records, sent to a topic, a table or a folder of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributary.cli.command.output import Paper, counted, number, tally
from distributary.cli.command.verb import START, Invocation, argument, group, option, verb

if TYPE_CHECKING:
    from distributary.config.sources.kafka import KafkaSourceConfig
    from distributary_lab.simulate.base import ReferencedRegistry, Round, Sent, Sink
    from distributary_lab.simulate.cdc.datastream_files import CdcSent, FileRound
    from distributary_lab.simulate.cdc.debezium import MessageRound
    from distributary_lab.simulate.kafka_sink import KafkaTarget


app = group("produce", "Send simulated records to a source.", panel=START)

# Options that several producers have.


OrderType = Literal["orders", "customer", "product"]

_ADDRESSES = ("KAFKA_SERVER", "KAFKA_URL", "SR_URL", "SCHEMA_REGISTRY_URL")
KAFKA, DELTA, FILES = "With --to kafka", "With --to delta", "With --to files"

SERVERS_HELP = "Brokers as host:port; 127.0.0.1:9092 by default."
URL_HELP = "Address of the schema registry; the registry of `dev up` by default."
Servers = Annotated[
    str | None,
    option("--bootstrap-servers", SERVERS_HELP, envvar="KAFKA_SERVER", rich_help_panel=KAFKA),
]
Partitions = Annotated[
    int | None,
    option(
        "--partitions", "Partitions of a new topic; 1 by default.", min=1, rich_help_panel=KAFKA
    ),
]
Seed = Annotated[int, option("--seed", "The same seed sends the same records.")]
Rate = Annotated[
    float | None, option("--rate", "Messages per second; as fast as possible when left out.")
]
Games = Annotated[int, option("--games", "Number of record types.", min=1)]
Versions = Annotated[int, option("--versions", "Number of schema versions per type.", min=1)]
Records = Annotated[
    int, option("--records", "Number of valid records per type and version.", min=1)
]
Bad = Annotated[int, option("--bad", "Number of additional invalid records.", min=0)]
StartVersion = Annotated[int, option("--start-version", "The first version of the schemas.", min=1)]


@dataclass(frozen=True, slots=True)
class ProduceTarget:
    """Where records go, as the command line says it."""

    path: Annotated[
        Path | None, argument("With --to delta: folder of the table.", metavar="PATH")
    ] = None
    to: Annotated[
        Literal["kafka", "delta"],
        option("--to", "A Kafka topic, or a Delta table instead."),
    ] = "kafka"
    bootstrap_servers: Servers = None
    registry_url: Annotated[
        str | None, option("--registry-url", URL_HELP, envvar="SR_URL", rich_help_panel=KAFKA)
    ] = None
    topic: Annotated[
        str | None,
        option("--topic", "The topic; it is created when missing.", rich_help_panel=KAFKA),
    ] = None
    partitions: Partitions = None
    pipeline: Annotated[
        Path | None,
        option(
            "--pipeline",
            "Take the topic or table, the registry and credentials from this pipeline file.",
            metavar="FILE",
        ),
    ] = None
    registry: Annotated[
        Path | None,
        option("--registry", "Folder of the schemas.", metavar="DIR", rich_help_panel=DELTA),
    ] = None


@dataclass(frozen=True, slots=True)
class PeopleTarget(ProduceTarget):
    """The same, with the topic of the environment."""

    topic: Annotated[
        str | None,
        option(
            "--topic", "The topic; people by default.", envvar="KAFKA_TOPIC", rich_help_panel=KAFKA
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OrdersTarget(ProduceTarget):
    """The same, with the names that other programs have for brokers and registry."""

    bootstrap_servers: Annotated[
        str | None,
        option(
            "--bootstrap-servers",
            SERVERS_HELP,
            envvar=["KAFKA_URL", "KAFKA_SERVER"],
            rich_help_panel=KAFKA,
        ),
    ] = None
    registry_url: Annotated[
        str | None,
        option(
            "--registry-url",
            URL_HELP,
            envvar=["SCHEMA_REGISTRY_URL", "SR_URL"],
            rich_help_panel=KAFKA,
        ),
    ] = None
    topic: Annotated[
        str | None,
        option(
            "--topic",
            "The topic; by default dev.orders, or dev.types for the two types.",
            envvar="KAFKA_TOPIC",
            rich_help_panel=KAFKA,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Ready to be sent to."""

    name: str
    """For people."""
    registry: ReferencedRegistry
    sink: Sink
    describe: Callable[[], dict[str, Any]]
    """The current results of the producer, for `--json`."""


@contextmanager
def _open_target(
    call: Invocation, target: ProduceTarget, *, topic: str, wrapped: bool = False
) -> Iterator[OpenTarget]:
    """Open the named topic, a topic of this name, or the table in its place."""
    from distributary.registry.folder import FileRegistry
    from distributary_lab.simulate.base import DeltaSink
    from distributary_lab.simulate.kafka_sink import open_outlet

    target, value = _as_in_file(call, target, "wrapper" if wrapped else "value")
    if target.to == "kafka":
        where = _kafka_target(call, target, topic)
        with open_outlet(where) as outlet:
            place = {"kind": "kafka", "bootstrap_servers": where.bootstrap_servers}

            def describe() -> dict[str, Any]:
                return {"to": place | outlet.describe(), "registry": where.registry_url}

            name = f"topic {where.topic} at {where.bootstrap_servers}"
            yield OpenTarget(name, outlet.registry, outlet.sink, describe)
        return
    table, folder = target.path, target.registry
    if table is None or folder is None:
        raise call.usage("--to delta needs the folder of a table, and --registry for the schemas.")
    if target.partitions is not None:
        raise call.usage("--partitions is for --to kafka: a table has none.")
    about = {"to": {"kind": "delta", "path": str(table)}, "registry": str(folder)}
    # others are tables of messages that say themselves what they are
    type_column = "game_name" if wrapped else None
    sink = DeltaSink(table, value_column=value, type_column=type_column)
    yield OpenTarget(str(table), FileRegistry(folder), sink, lambda: about)


def _as_in_file(call: Invocation, target: ProduceTarget, value: str) -> tuple[ProduceTarget, str]:
    """Return the target and the column of records of the table that the pipeline file reads.

    Both stay as they are without a file, and for one that reads topics.
    """
    from distributary.config.load import load

    if target.pipeline is None:
        return target, value
    config = load(target.pipeline).config
    table, registry = config.source.table_folder, config.registry
    if table is None:
        return target, value
    if target.path is not None or target.registry is not None:
        raise call.usage("--pipeline names the table and the schemas already.")
    if registry is None or registry.path is None:
        raise call.usage("--pipeline needs a file whose registry is a folder, for a table.")
    found = replace(target, to="delta", path=Path(table), registry=Path(registry.path))
    return found, config.source.record_fields["value"]


def _kafka_target(call: Invocation, target: ProduceTarget, topic: str) -> KafkaTarget:
    from distributary.config.load import load
    from distributary.config.sources.kafka import kafka_of
    from distributary_lab.simulate.kafka_sink import BOOTSTRAP_SERVERS, REGISTRY_URL, KafkaTarget

    if target.path is not None or target.registry is not None:
        raise call.usage("PATH and --registry are for --to delta: a topic has a name and a server.")
    if target.pipeline is None:
        return KafkaTarget(
            topic=target.topic or topic,
            bootstrap_servers=target.bootstrap_servers or BOOTSTRAP_SERVERS,
            registry_url=target.registry_url or REGISTRY_URL,
            partitions=target.partitions,
        )
    if _is_typed(target.bootstrap_servers) or _is_typed(target.registry_url):
        raise call.usage("--pipeline names the brokers and the registry already.")
    config = load(target.pipeline).config
    source, registry = kafka_of(config.source), config.registry
    if source is None or registry is None:
        raise call.usage(
            "--pipeline needs a file that reads topics or a table in a folder, with a registry."
        )
    return KafkaTarget(
        topic=target.topic or (source.topics[0] if source.topics else topic),
        bootstrap_servers=source.bootstrap_servers,
        registry_url=next(iter(registry.addresses), REGISTRY_URL),
        partitions=target.partitions,
        source=source,
        registry=registry,
    )


def _is_typed(value: str | None) -> bool:
    """Return whether an address is on the command line.

    One of the environment's variables may be there for the pipeline file, which refers to it.
    """
    return value is not None and value not in [os.environ.get(name) for name in _ADDRESSES]


def _teller(call: Invocation) -> Callable[[Round], None]:
    """Says after each round how far it is."""
    sent = 0

    def tell(done: Round) -> None:
        nonlocal sent
        sent += done.sent().messages
        call.out.note(f"version {done.version}: {counted(sent, 'message')} sent")

    return tell


def _show_sent(call: Invocation, sent: Sent, opened: OpenTarget) -> None:
    data = opened.describe() | sent.as_dict()

    def draw(paper: Paper) -> None:
        good, bad = number(sent.good), number(sent.bad)
        messages = counted(sent.messages, "message")
        paper.line(f"sent {messages} to {opened.name}: {good} good, {bad} bad")
        versions = sum(len(by_version) for by_version in sent.schema_ids.values())
        types, schemas = counted(len(sent.schema_ids), "type"), counted(versions, "schema version")
        paper.line(f"  {types}, {schemas}, {number(sent.framed)} with the registry's header")
        if "acknowledged" in data["to"]:
            paper.line(f"  {number(data['to']['acknowledged'])} acknowledged by the broker")
        if sent.rows != sent.good:
            paper.line(f"  {counted(sent.rows, 'row')} in the good ones")
        if sent.bad_by_code:
            paper.line(f"  bad ones: {tally(sent.bad_by_code)}")
        if sent.late:
            paper.line(f"  {number(sent.late)} of an old version came late")

    call.out.show(data, draw)


_SHARES = {"none": 0.0, "confluent": 1.0}


@verb(
    app,
    "produce games --to delta my-lake/wrapper --registry my-lake/schemas",
    "produce games --to kafka --games 20 --bad 25",
)
def games(
    call: Invocation,
    target: ProduceTarget,
    games: Games = 5,
    versions: Versions = 5,
    records: Records = 10,
    bad: Bad = 0,
    bad_kinds: Annotated[
        str | None, option("--bad-kinds", "Kinds of invalid records, separated by commas.")
    ] = None,
    late: Annotated[
        int, option("--late", "Number of records of old versions, sent at the end.", min=0)
    ] = 0,
    type_change: Annotated[
        bool, option("--type-change", "Change the type of a field in the newest version.")
    ] = False,
    start_version: StartVersion = 1,
    framing: Annotated[
        Literal["none", "confluent", "mixed"],
        option("--framing", "Whether records have the registry's header."),
    ] = "mixed",
    rate: Rate = None,
    seed: Seed = 999,
) -> None:
    """Send events of many games in envelopes, while their schemas grow.

    The default topic is wrapper.
    """
    from distributary_lab.simulate.base import DEFAULT_KINDS, deliver, parse_kinds
    from distributary_lab.simulate.game_records import GamesPlan
    from distributary_lab.simulate.games import stream_rounds

    plan = GamesPlan(
        framed=_SHARES.get(framing, "mixed"),
        bad_kinds=parse_kinds(bad_kinds.split(",")) if bad_kinds else DEFAULT_KINDS,
        games=games,
        versions=versions,
        records=records,
        bad=bad,
        late=late,
        type_change=type_change,
        start_version=start_version,
        seed=seed,
    )
    with _open_target(call, target, topic="wrapper", wrapped=True) as opened:
        rounds = stream_rounds(plan, registry=opened.registry)
        sent = deliver(rounds, sink=opened.sink, rate=rate, on_round=_teller(call))
        _show_sent(call, sent, opened)


@verb(
    app,
    "produce people --to delta my-lake/people --registry my-lake/schemas",
    "produce people --to kafka --versions 3",
)
def people(
    call: Invocation,
    target: PeopleTarget,
    versions: Versions = 2,
    records: Records = 10,
    start_version: StartVersion = 1,
    rate: Rate = None,
    seed: Seed = 999,
) -> None:
    """Send framed messages of one type, whose schema gains a field with every version."""
    from distributary_lab.simulate.base import deliver
    from distributary_lab.simulate.games import PeoplePlan, stream_people

    plan = PeoplePlan(
        subject=f"{target.topic or 'people'}-value",
        versions=versions,
        records=records,
        start_version=start_version,
        seed=seed,
    )
    with _open_target(call, target, topic="people") as opened:
        rounds = stream_people(plan, registry=opened.registry)
        sent = deliver(rounds, sink=opened.sink, rate=rate, on_round=_teller(call))
        _show_sent(call, sent, opened)


@verb(
    app,
    "produce orders --to delta my-lake/orders --registry my-lake/schemas",
    "produce orders --to kafka --versions 2 --empty 3",
    "produce orders --to kafka --framing none --records 1",
)
def orders(
    call: Invocation,
    target: OrdersTarget,
    type: Annotated[
        OrderType, option("--type", "Lists of orders, or one of two types that share a topic.")
    ] = "orders",
    records: Annotated[
        int, option("--records", "Number of messages per version, none of them empty.", min=1)
    ] = 10,
    versions: Annotated[
        int, option("--versions", "2 adds a field to products in orders.", min=1, max=2)
    ] = 1,
    empty: Annotated[
        int, option("--empty", "Number of additional lists without an order.", min=0)
    ] = 0,
    framing: Annotated[
        Literal["none", "confluent"],
        option("--framing", "none: without the registry's header, for dead letters."),
    ] = "confluent",
    interactive: Annotated[
        bool,
        option("--interactive", "Ask for the values of each record; an empty line ends the input."),
    ] = False,
    rate: Rate = None,
    seed: Seed = 999,
) -> None:
    """Send orders in Avro, several in one message, with names beyond ASCII.

    --type customer and --type product send records of two types to one topic, whose schema is a
    union of both.
    """
    from distributary_lab.simulate.base import deliver
    from distributary_lab.simulate.orders import OrderKind, OrdersPlan, stream_orders, typed_orders

    usual = "dev.orders" if type == "orders" else "dev.types"
    plan = OrdersPlan(
        kind=OrderKind(type),
        topic=target.topic or usual,
        framed=framing == "confluent",
        records=records,
        versions=versions,
        empty=empty,
        seed=seed,
    )
    with _open_target(call, target, topic=usual) as opened:
        if interactive:
            values = _ask_records(call, type, version=versions)
            typed = typed_orders(plan, values, registry=opened.registry)
            for count, message in enumerate(typed.messages(), start=1):
                # one by one: each is there before the next is asked for
                opened.sink.write([message])
                call.out.note(f"sent {count}")
            sent = typed.sent()
        else:
            rounds = stream_orders(plan, registry=opened.registry)
            sent = deliver(rounds, sink=opened.sink, rate=rate, on_round=_teller(call))
        _show_sent(call, sent, opened)


def _ask_records(call: Invocation, kind: OrderType, *, version: int) -> Iterator[Any]:
    """Record after record, until the first answer is empty or nothing comes any more."""
    from rich.prompt import Prompt

    def ask(label: str, read: Callable[[str], Any] = str, default: Any = "") -> Any:
        """Ask until the answer can be read; an empty line means the default."""
        while True:
            console = call.out.margin.console
            typed = Prompt.ask(label, console=console, default="", show_default=False).strip()
            if not typed:
                return default
            try:
                return read(typed)
            except ValueError as error:
                call.out.warn(str(error))

    def products() -> Iterator[dict[str, Any]]:
        while name := ask("product, nothing when there is no other"):
            product = {"name": name, "price": ask("its price", _amount, 0.0)}
            if version > 1:
                product["uuid"] = ask("its number, or nothing", _whole(_INT), None)
            yield product

    # the end of a pipe is as good as an empty line
    with suppress(EOFError):
        first, bits = _FIRST[kind]
        while (id := ask(f"{first} number, nothing to end", _whole(bits), None)) is not None:
            record = {f"{first}_id": id} | {key: ask(label) for key, label in _TEXTS[kind].items()}
            if kind == "product":
                record["product_price"] = ask("price", _amount, 0.0)
            if kind != "orders":
                yield record
                continue
            record["products"] = list(products())
            total = sum(product["price"] for product in record["products"])
            yield [record | {"price": ask(f"price, else {total:g}", _amount, total)}]


_INT, _LONG = 31, 63
_FIRST = {"orders": ("order", _LONG), "customer": ("customer", _INT), "product": ("product", _INT)}
_TEXTS = {
    "orders": {"customer": "customer", "description": "description"},
    "customer": {f"customer_{label}": label for label in ("name", "email", "address")},
    "product": {"product_name": "name"},
}


def _whole(bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not -(1 << bits) <= int(text) < 1 << bits:
            raise ValueError("a whole number is needed here")
        return int(text)

    return read


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number is needed here") from None


@verb(
    app,
    "produce cdc my-lake/datastream --tables 5",
    "produce cdc my-lake/datastream --tables 50 --chaos --truth truth.json",
    "produce cdc --to kafka --source-type postgresql",
    "produce cdc changes.sql --to sql --source-type postgresql",
)
def cdc(
    call: Invocation,
    path: Annotated[
        Path | None,
        argument(
            "With --to files: folder of the files; with --to sql: the script.", metavar="PATH"
        ),
    ] = None,
    to: Annotated[
        Literal["files", "kafka", "sql"],
        option(
            "--to",
            "Change files of Datastream, messages of Debezium, or SQL for a real PostgreSQL, MySQL "
            "or MariaDB.",
        ),
    ] = "files",
    source_type: Annotated[
        Literal["mysql", "postgresql", "oracle", "sqlserver"],
        option("--source-type", "Kind of the simulated database."),
    ] = "mysql",
    tables: Annotated[int, option("--tables", "Number of tables.", min=1)] = 2,
    events: Annotated[
        int, option("--events", "Number of changes in all tables together.", min=0)
    ] = 1_000,
    rows: Annotated[
        int, option("--rows", "Number of rows per table that are sent as a backfill.", min=0)
    ] = 20,
    rounds: Annotated[
        int, option("--rounds", "Number of parts in which the stream is sent.", min=1)
    ] = 5,
    interval: Annotated[float, option("--interval", "Seconds between two parts.", min=0)] = 0.0,
    chaos: Annotated[
        bool, option("--chaos", "Send duplicates, late events and all other difficulties.")
    ] = False,
    features: Annotated[
        str | None,
        option(
            "--with", "Only these difficulties, separated by commas: page Producing of the docs."
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        option("--truth", "File to write the expected rows of all tables to.", metavar="FILE"),
    ] = None,
    print_truth: Annotated[
        bool, option("--print-truth", "Print the expected rows of all tables as JSON.")
    ] = False,
    seed: Seed = 999,
    format: Annotated[
        Literal["avro", "json", "json-array", "debezium"] | None,
        option("--format", "Format of the changes; by default avro, or debezium with --to kafka."),
    ] = None,
    gzip: Annotated[
        bool, option("--gzip", "Compress files in JSON.", rich_help_panel=FILES)
    ] = False,
    bare_methods: Annotated[
        bool,
        option(
            "--bare-methods",
            "Write the read methods as cdc and backfill, without the kind of database.",
            rich_help_panel=FILES,
        ),
    ] = False,
    bootstrap_servers: Servers = None,
    topic_prefix: Annotated[
        str, option("--topic-prefix", "Prefix of all topics.", rich_help_panel=KAFKA)
    ] = "shop",
    with_schema: Annotated[
        bool, option("--with-schema", "Put the schema into each message.", rich_help_panel=KAFKA)
    ] = False,
    partitions: Partitions = None,
    pipeline: Annotated[
        Path | None,
        option(
            "--pipeline",
            "Take the folder, or the brokers and their credentials, from this pipeline file.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Send the changes of a simulated database's rows, and print the resulting rows.

    Some rows exist already and are sent as a backfill; then rows are inserted, updated and deleted.
    The same seed gives the same files, byte by byte.
    """
    from distributary.store import disk
    from distributary_lab.simulate.cdc import datastream_files, debezium, shapes, sql_script
    from distributary_lab.simulate.kafka_sink import BOOTSTRAP_SERVERS

    login = None
    if pipeline is not None:
        if path is not None or _is_typed(bootstrap_servers):
            raise call.usage("--pipeline names the folder or the brokers already.")
        path, login = _changes_in_file(call, pipeline)
        to = "files" if login is None else "kafka"
    messages, as_sql = to == "kafka", to == "sql"
    # a database has the types of Debezium's messages
    chosen = format or ("debezium" if messages or as_sql else "avro")
    if (chosen == "debezium") != (messages or as_sql):
        raise call.usage(
            "--format debezium goes with --to kafka, the other formats with --to files."
        )
    some = shapes.parse_features(features.split(",")) if features else frozenset()
    every = sql_script.IN_DATABASES if as_sql else shapes.CHAOS
    plan = shapes.CdcPlan(
        features=every if chaos else shapes.CALM | some,
        format=shapes.CdcFormat(chosen),
        source_type=shapes.SourceType(source_type),
        tables=tables,
        events=events,
        rows=rows,
        rounds=rounds,
        seed=seed,
        gzip=gzip,
        bare_methods=bare_methods,
        topic_prefix=topic_prefix,
        with_schema=with_schema,
    )

    def tell_messages(round: MessageRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.messages), 'message')}")

    def tell_files(round: FileRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.files), 'file')}")

    about: dict[str, Any]
    if as_sql:
        if path is None:
            raise call.usage("--to sql needs the path of the script.")

        def tell_statements(round: int, statements: int) -> None:
            call.out.note(f"round {round + 1}: {counted(statements, 'statement')}")

        script = sql_script.SqlScript(plan)
        model = script.model
        sent = sql_script.write_script(script, path, interval=interval, on_round=tell_statements)
        about = {"kind": "sql", "path": str(path)}
    elif messages:
        if path is not None:
            raise call.usage("PATH is for --to files: a topic has a name and a server.")
        given = bootstrap_servers if login is None else login.bootstrap_servers
        servers, changes = given or BOOTSTRAP_SERVERS, debezium.DebeziumStream(plan)
        outlet = debezium.TopicsOutlet(servers, partitions=partitions, source=login)
        model = changes.model
        sent = debezium.send_messages(changes, outlet, interval=interval, on_round=tell_messages)
        about = {"kind": "kafka", "bootstrap_servers": servers, "topics": sorted(outlet.made)}
        about["acknowledged"] = outlet.acknowledged
    else:
        if path is None:
            raise call.usage("--to files needs the folder of the stream.")
        if partitions is not None:
            raise call.usage("--partitions is for --to kafka: a folder has none.")
        stream = datastream_files.FileStream(plan)
        model = stream.model
        sent = datastream_files.write_files(stream, path, interval=interval, on_round=tell_files)
        about = {"kind": "files", "path": str(path)}
    known = (
        json.dumps(datastream_files.truth_document(model), indent=1) if truth or print_truth else ""
    )
    if truth is not None:
        truth.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(truth, f"{known}\n".encode())
    data = {"to": about} | sent.as_dict()
    if print_truth:
        call.out.show(data | {"truth": json.loads(known)}, lambda paper: paper.lines(known))
    else:
        call.out.show(data, lambda paper: _draw_changes(paper, sent, about))


def _changes_in_file(call: Invocation, file: Path) -> tuple[Path | None, KafkaSourceConfig | None]:
    """Return the folder or the brokers whose change data a pipeline file reads."""
    from distributary.config.load import load
    from distributary.config.sources.files import files_of
    from distributary.config.sources.kafka import kafka_of

    source = load(file).config.source
    files, login = files_of(source), kafka_of(source)
    if files is None and login is None:
        raise call.usage("--pipeline needs a file that reads change files or topics.")
    return None if files is None else Path(files.root), login


def _draw_changes(paper: Paper, sent: CdcSent, about: dict[str, Any]) -> None:
    messages = about["kind"] == "kafka"
    where = about["bootstrap_servers"] if messages else about["path"]
    paper.line(f"sent {counted(sent.events, 'event')} to {where}: {number(sent.distinct)} distinct")
    tables = counted(len(sent.per_table), "table")
    read, changed = number(sent.backfilled), number(sent.changes)
    paper.line(f"  {tables}, {read} rows backfilled, {changed} changes")
    paper.line(f"  by type: {tally(sent.by_change_type)}")
    if messages:
        acknowledged = number(about["acknowledged"])
        paper.line(f"  {number(sent.tombstones)} tombstones, {acknowledged} acknowledged messages")
    elif about["kind"] == "files":
        late, noise = number(sent.late_files), number(sent.noise_files)
        paper.line(f"  {counted(sent.files, 'file')}, {late} of them late; {noise} without events")
    if sent.duplicates:
        paper.line(f"  {number(sent.duplicates)} came again, byte by byte")
    # a key is a list in JSON: database, schema and table
    rows = {".".join(filter(None, json.loads(key))): count for key, count in sent.rows.items()}
    paper.line(f"  rows in the end: {tally(rows)}")
