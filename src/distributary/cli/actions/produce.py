"""`produce games` and `produce people`, and what every producer says in the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.prompt import Prompt

from distributary.cli.logs import usage_error
from distributary.cli.output import Paper, counted, number, tally
from distributary.cli.verb import Invocation
from distributary.config.kafka import KafkaSource
from distributary.config.load import load
from distributary.errors import ConfigError
from distributary.lab.simulate.base import (
    DEFAULT_KINDS,
    DeltaSink,
    Registry,
    Round,
    Sent,
    Sink,
    parse_kinds,
)
from distributary.lab.simulate.cdc.debezium import DebeziumStream, MessageRound
from distributary.lab.simulate.cdc.files import (
    CdcSent,
    FileRound,
    FileStream,
    truth_document,
    write_files,
)
from distributary.lab.simulate.cdc.script import ChangeModel
from distributary.lab.simulate.cdc.shapes import (
    CALM,
    CHAOS,
    CdcFormat,
    CdcPlan,
    SourceType,
    parse_features,
)
from distributary.lab.simulate.game_records import GamesPlan
from distributary.lab.simulate.games import PeoplePlan, produce_games, produce_people
from distributary.lab.simulate.kafka import (
    BOOTSTRAP_SERVERS,
    REGISTRY_URL,
    KafkaTarget,
    open_outlet,
)
from distributary.lab.simulate.orders import (
    OrderKind,
    OrdersPlan,
    produce_orders,
    protobuf_serializer,
    typed_orders,
)
from distributary.registry.folder import FileRegistry
from distributary.store import disk

# `produce cdc`: changes of a simulated database, as files or as messages.


@dataclass(frozen=True, slots=True)
class CdcTarget:
    """What the command line says about where changes go."""

    to: str
    path: Path | None
    bootstrap_servers: str | None
    partitions: int | None

    def folder(self) -> Path:
        """Where files go."""
        if self.path is None:
            raise _usage("--to files needs the folder of the stream.")
        if self.partitions is not None:
            raise _usage("--partitions is for --to kafka: a folder has none.")
        return self.path

    def servers(self) -> str:
        """Where messages go."""
        if self.path is not None:
            raise _usage("PATH is for --to files: a topic has a name and a server.")
        return self.bootstrap_servers or BOOTSTRAP_SERVERS


@dataclass(frozen=True, slots=True)
class Truth:
    """Who wants to know what the tables must hold."""

    file: Path | None
    print: bool


def send_changes(
    call: Invocation,
    target: CdcTarget,
    truth: Truth,
    *,
    interval: float,
    chaos: bool,
    with_features: str | None,
    format: str | None,
    source_type: str,
    **numbers: Any,
) -> None:
    """Send the changes."""
    features = parse_features(with_features.split(",")) if with_features else frozenset()
    plan = CdcPlan(
        features=CHAOS if chaos else CALM | features,
        format=_format(target, format),
        source_type=SourceType(source_type),
        **numbers,
    )
    if plan.is_debezium:
        model, sent, about = _send_messages(call, target, plan, interval)
    else:
        model, sent, about = _send_files(call, target, plan, interval)
    _show(call, model, sent, about, truth)


def _send_files(
    call: Invocation, target: CdcTarget, plan: CdcPlan, interval: float
) -> tuple[ChangeModel, CdcSent, dict[str, Any]]:
    stream, folder = FileStream(plan), target.folder()

    def tell(round: FileRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.files), 'file')}")

    sent = write_files(stream, folder, interval=interval, on_round=tell)
    return stream.model, sent, {"kind": "files", "path": str(folder)}


def _send_messages(
    call: Invocation, target: CdcTarget, plan: CdcPlan, interval: float
) -> tuple[ChangeModel, CdcSent, dict[str, Any]]:
    # not at the top: files need no client of Kafka
    from distributary.lab.simulate.cdc.debezium import TopicsOutlet, send_messages

    servers = target.servers()
    outlet = TopicsOutlet(servers, partitions=target.partitions)
    stream = DebeziumStream(plan)

    def tell(round: MessageRound) -> None:
        call.out.note(f"round {round.number + 1}: {counted(len(round.messages), 'message')}")

    sent = send_messages(stream, outlet, interval=interval, on_round=tell)
    about = {"kind": "kafka", "bootstrap_servers": servers, "topics": sorted(outlet.made)}
    return stream.model, sent, about | {"acknowledged": outlet.acknowledged}


def _show(
    call: Invocation, model: ChangeModel, sent: CdcSent, about: dict[str, Any], truth: Truth
) -> None:
    known = truth_document(model) if truth.print or truth.file else {}
    if truth.file is not None:
        truth.file.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(truth.file, (json.dumps(known, indent=1) + "\n").encode())
    data = {"to": about} | sent.as_dict() | ({"truth": known} if truth.print else {})
    if truth.print:
        call.out.show(data, lambda paper: paper.lines(json.dumps(known, indent=1)))
    else:
        call.out.show(data, lambda paper: _draw_changes(paper, sent, about))


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
    else:
        late, noise = number(sent.late_files), number(sent.noise_files)
        paper.line(f"  {counted(sent.files, 'file')}, {late} of them late; {noise} without events")
    if sent.duplicates:
        paper.line(f"  {number(sent.duplicates)} came again, byte by byte")
    paper.line(f"  rows in the end: {tally(sent.rows)}")


def _format(target: CdcTarget, format: str | None) -> CdcFormat:
    usual = CdcFormat.DEBEZIUM if target.to == "kafka" else CdcFormat.AVRO
    chosen = CdcFormat(format) if format else usual
    if (chosen is CdcFormat.DEBEZIUM) != (target.to == "kafka"):
        raise _usage("--format debezium goes with --to kafka, the other formats with --to files.")
    return chosen


def _usage(message: str) -> ConfigError:
    return usage_error(message, command="distributary produce cdc")


# Where `produce` sends to: a topic and a registry, or a table and a folder of schemas.


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line says about it."""

    to: str
    path: Path | None
    registry: Path | None
    bootstrap_servers: str | None
    registry_url: str | None
    topic: str | None
    partitions: int | None
    pipeline: Path | None = None
    """A pipeline file that says where Kafka and the registry are, and how to log in to them."""

    @property
    def is_kafka(self) -> bool:
        """Whether it is a topic."""
        return self.to == "kafka"

    def kafka(self, topic: str) -> KafkaTarget:
        """The broker, the registry, and this topic unless another one was named."""
        if self.path is not None or self.registry is not None:
            raise _target_usage(
                "PATH and --registry are for --to delta: a topic has a name and a server."
            )
        if self.pipeline is not None:
            return self._as_in(self.pipeline, topic)
        return KafkaTarget(
            topic=self.topic or topic,
            bootstrap_servers=self.bootstrap_servers or BOOTSTRAP_SERVERS,
            registry_url=self.registry_url or REGISTRY_URL,
            partitions=self.partitions,
        )

    def _as_in(self, file: Path, topic: str) -> KafkaTarget:
        if self.bootstrap_servers is not None or self.registry_url is not None:
            raise _target_usage("--pipeline names the brokers and the registry already.")
        config = load(file).config
        if not isinstance(config.source, KafkaSource) or config.registry is None:
            raise _target_usage(
                "--pipeline needs a file with a source of type kafka and a registry."
            )
        named = config.source.topics[0] if config.source.topics else topic
        return KafkaTarget(
            topic=self.topic or named,
            bootstrap_servers=config.source.bootstrap_servers,
            registry_url=next(iter(config.registry.addresses), REGISTRY_URL),
            partitions=self.partitions,
            source=config.source,
            registry=config.registry,
        )

    def delta(self) -> tuple[Path, Path]:
        """The folders of the table and of the schemas."""
        if self.path is None or self.registry is None:
            raise _target_usage(
                "--to delta needs the folder of a table, and --registry for the schemas."
            )
        if self.partitions is not None:
            raise _target_usage("--partitions is for --to kafka: a table has none.")
        return self.path, self.registry


@dataclass(frozen=True, slots=True)
class Opened:
    """Ready to be sent to."""

    name: str
    """For people."""
    registry: Registry
    sink: Sink
    describe: Callable[[], dict[str, Any]]
    """What is known about it by now, for `--json`."""


@contextmanager
def open_target(
    target: Target, *, topic: str, sink: Callable[[Path], DeltaSink]
) -> Iterator[Opened]:
    """Whatever was asked for: the topic of this name, or the table that stands for it."""
    if not target.is_kafka:
        table, folder = target.delta()
        about = {"to": {"kind": "delta", "path": str(table)}, "registry": str(folder)}
        yield Opened(str(table), FileRegistry(folder), sink(table), lambda: about)
        return
    where = target.kafka(topic)
    with open_outlet(where) as outlet:
        place = {"kind": "kafka", "bootstrap_servers": where.bootstrap_servers}

        def describe() -> dict[str, Any]:
            return {"to": place | outlet.describe(), "registry": where.registry_url}

        name = f"topic {where.topic} at {where.bootstrap_servers}"
        yield Opened(name, outlet.registry, outlet.sink, describe)


def _target_usage(message: str) -> ConfigError:
    return usage_error(message, command="distributary produce")


_SHARES = {"none": 0.0, "confluent": 1.0}
_WRAPPER, _PEOPLE = "wrapper", "people"


def send_games(
    call: Invocation,
    target: Target,
    *,
    rate: float | None,
    framing: str,
    bad_kinds: str | None,
    **numbers: Any,
) -> None:
    """Send the games."""
    kinds = parse_kinds(bad_kinds.split(",")) if bad_kinds else DEFAULT_KINDS
    plan = GamesPlan(framed=_SHARES.get(framing, "mixed"), bad_kinds=kinds, **numbers)
    with open_target(target, topic=_WRAPPER, sink=DeltaSink) as opened:
        sent = produce_games(
            plan, registry=opened.registry, sink=opened.sink, rate=rate, on_round=Teller(call)
        )
        show_sent(call, sent, opened)


def send_people(call: Invocation, target: Target, *, rate: float | None, **numbers: Any) -> None:
    """Send the people."""
    plan = PeoplePlan(subject=f"{target.topic or _PEOPLE}-value", **numbers)
    with open_target(target, topic=_PEOPLE, sink=plain_table) as opened:
        sent = produce_people(
            plan,
            registry=opened.registry,
            sink=opened.sink,
            framing=protobuf_serializer if target.is_kafka else None,
            rate=rate,
            on_round=Teller(call),
        )
        show_sent(call, sent, opened)


def plain_table(path: Any) -> DeltaSink:
    """A table of messages that say themselves what they are."""
    return DeltaSink(path, value_column="value", type_column=None)


class Teller:
    """Says after each round how far it is."""

    def __init__(self, call: Invocation) -> None:
        self._call, self._sent = call, 0

    def __call__(self, done: Round) -> None:
        """Called when a round was sent."""
        self._sent += done.sent().messages
        self._call.out.note(f"version {done.version}: {counted(self._sent, 'message')} sent")


def show_sent(call: Invocation, sent: Sent, opened: Opened) -> None:
    """What was sent, and to where."""
    data = opened.describe() | sent.as_dict()
    call.out.show(data, lambda paper: _draw(paper, sent, data, opened.name))


def _draw(paper: Paper, sent: Sent, data: dict[str, Any], name: str) -> None:
    good, bad = number(sent.good), number(sent.bad)
    paper.line(f"sent {counted(sent.messages, 'message')} to {name}: {good} good, {bad} bad")
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


# Asks at the terminal, or takes line after line from a pipe.

_T = TypeVar("_T")
_INT, _LONG = 31, 63


def ask_records(call: Invocation, kind: OrderKind, *, version: int) -> Iterator[Any]:
    """Record after record, until the first answer is empty or nothing comes any more."""
    ask = _Asker(call)
    make: dict[OrderKind, Callable[[], Any]] = {
        OrderKind.ORDERS: lambda: ask.orders(version),
        OrderKind.CUSTOMER: ask.customer,
        OrderKind.PRODUCT: ask.product,
    }
    # the end of a pipe is as good as an empty line
    with suppress(EOFError):
        while (record := make[kind]()) is not None:
            yield record


class _Asker:
    def __init__(self, call: Invocation) -> None:
        self._call = call

    def orders(self, version: int) -> list[dict[str, Any]] | None:
        number = self._ask("order number, nothing to end", _whole(_LONG))
        if number is None:
            return None
        order = {
            "order_id": number,
            "customer": self._text("customer"),
            "description": self._text("description"),
            "products": self._products(version),
        }
        total = sum(product["price"] for product in order["products"])
        return [order | {"price": self._ask(f"price, else {total:g}", _amount, total)}]

    def _products(self, version: int) -> list[dict[str, Any]]:
        products: list[dict[str, Any]] = []
        while name := self._text("product, nothing when there is no other"):
            product: dict[str, Any] = {"name": name, "price": self._ask("its price", _amount, 0.0)}
            if version > 1:
                product["uuid"] = self._ask("its number, or nothing", _whole(_INT))
            products.append(product)
        return products

    def customer(self) -> dict[str, Any] | None:
        number = self._ask("customer number, nothing to end", _whole(_INT))
        if number is None:
            return None
        return {
            "customer_id": number,
            "customer_name": self._text("name"),
            "customer_email": self._text("email"),
            "customer_address": self._text("address"),
        }

    def product(self) -> dict[str, Any] | None:
        number = self._ask("product number, nothing to end", _whole(_INT))
        if number is None:
            return None
        return {
            "product_id": number,
            "product_name": self._text("name"),
            "product_price": self._ask("price", _amount, 0.0),
        }

    def _text(self, label: str) -> str:
        return str(self._ask(label, str, ""))

    def _ask(self, label: str, read: Callable[[str], _T], default: _T | None = None) -> Any:
        """One answer; asked again until it can be read, and the default for an empty line."""
        while True:
            console = self._call.out.margin.console
            typed = Prompt.ask(label, console=console, default="", show_default=False)
            if not typed.strip():
                return default
            try:
                return read(typed.strip())
            except ValueError as error:
                self._call.out.warn(str(error))


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


# `produce orders`: simulated ones, or what somebody types.

_TOPICS = {OrderKind.ORDERS: "dev.orders"}
_SHARED_TOPIC = "dev.types"


def send_orders(
    call: Invocation,
    target: Target,
    *,
    interactive: bool,
    rate: float | None,
    kind: str,
    **numbers: Any,
) -> None:
    """Send orders, customers or products."""
    usual = _TOPICS.get(OrderKind(kind), _SHARED_TOPIC)
    plan = OrdersPlan(kind=OrderKind(kind), topic=target.topic or usual, **numbers)
    with open_target(target, topic=usual, sink=plain_table) as opened:
        if interactive:
            sent = _send_typed(call, plan, opened)
        else:
            sent = produce_orders(
                plan, registry=opened.registry, sink=opened.sink, rate=rate, on_round=Teller(call)
            )
        show_sent(call, sent, opened)


def _send_typed(call: Invocation, plan: OrdersPlan, opened: Opened) -> Sent:
    values = ask_records(call, plan.kind, version=plan.versions)
    typed = typed_orders(plan, values, registry=opened.registry)
    for count, message in enumerate(typed.messages(), start=1):
        # one by one: each is there before the next is asked for
        opened.sink.write([message])
        call.out.note(f"sent {count}")
    return typed.sent()
