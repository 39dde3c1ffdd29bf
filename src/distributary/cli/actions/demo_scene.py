"""What a demo is about: what is sent, to where, and which tables come of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distributary.cli.logs import usage_error
from distributary.cli.output import counted
from distributary.cli.verb import Invocation
from distributary.config.show import json_schema
from distributary.engine.checkpoint import Manifests
from distributary.engine.claim import state_of
from distributary.errors import ConfigError, ErrorCode, OwnedError
from distributary.lab.simulate.base import ArrowSink, DeltaSink, Registry, Round, Sent, Sink
from distributary.lab.simulate.game_records import GamesPlan
from distributary.lab.simulate.games import stream_rounds
from distributary.lab.simulate.orders import OrdersPlan, stream_orders
from distributary.model import layout
from distributary.model.names import propose
from distributary.registry.folder import FileRegistry
from distributary.store.base import at

_FIXED_TABLES = ("bronze_events", "unified_gold", "dead_letters")
_EMPTY_LISTS = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """One demo."""

    subject: str
    """Also the name of its pipeline."""
    title: str
    topic: str
    kafka: bool
    """Whether it needs a broker and a registry."""
    tables: tuple[str, ...]
    """The tables that it may make."""
    rounds: Callable[[Registry], Iterator[Round]]
    """Registers and gives one round after the other."""
    example: int
    """The offset of a record that is worth being looked for."""


def refuse(options: Mapping[str, object], subject: str) -> None:
    """Options that were given to a demo that has no use for them."""
    for name, value in options.items():
        if value is not None:
            raise usage_error(
                f"{name} means nothing for demo {subject}.", command="distributary demo"
            )


def games_scene(
    *,
    games: int | None = None,
    versions: int | None = None,
    records: int = 100,
    bad: int | None = None,
    seed: int = 999,
    kafka: bool = False,
) -> Scene:
    """Wrapped events of many games."""
    plan = GamesPlan(
        games=games or 20,
        versions=versions or 5,
        records=records,
        bad=3 if bad is None else bad,
        seed=seed,
    )
    title = (
        f"{counted(plan.games, 'game')}, {counted(plan.versions, 'schema version')} each, "
        f"{counted(plan.records, 'record')} per version, {counted(plan.bad, 'bad record')}"
    )
    each = (propose("silver_{type}", type=name).first for name in plan.names)
    return Scene(
        "games",
        title,
        "wrapper",
        kafka,
        (*_FIXED_TABLES, *each),
        lambda registry: stream_rounds(plan, registry=registry),
        example=min(42, plan.good - 1),
    )


def orders_scene(
    *,
    games: int | None = None,
    versions: int | None = None,
    records: int = 100,
    bad: int | None = None,
    seed: int = 999,
) -> Scene:
    """Lists of orders, some without the header that says what they are."""
    refuse({"--games": games}, "orders")
    bare = 1 if bad is None else bad
    plan = OrdersPlan(
        versions=versions or 2, records=records, empty=_EMPTY_LISTS, bare=bare, seed=seed
    )
    title = (
        f"{counted(plan.versions * plan.records, 'list')} of orders in "
        f"{counted(plan.versions, 'schema version')}, {counted(plan.empty, 'empty list')}, "
        f"{counted(bare, 'message')} without the registry's header"
    )
    return Scene(
        "orders",
        title,
        plan.topic,
        True,
        (*_FIXED_TABLES, propose("{topic}", topic=plan.topic).first),
        lambda registry: stream_orders(plan, registry=registry),
        # the first is never an empty list
        example=0,
    )


# The pipeline files that demos write, as a person would.

_HEAD = """\
# yaml-language-server: $schema={schema}
# Made by `distributary demo {subject}`. {after}
name: {subject}

"""

_WORKS = "Everything else works on it: run, status, plan, dlq, trace."
_ENDED = """\
Its broker and its registry ended with it:
# status, tables, schema, dlq list, dlq show and trace work without them."""

_DELTA_SOURCE = """\
source:
  type: delta
  path: {source}
  value: wrapper
  key: key
  timestamp: produced_at

registry:
  path: {schemas}
"""

_KAFKA_SOURCE = """\
source:
  type: kafka
  bootstrap_servers: {bootstrap_servers}
  topics: [{topic}]

registry:
  url: {registry}
"""

_GAMES = """
envelope:
  format: protobuf
  subject: wrapper-value
  type: game_name
  schema_id: schema_id
  payload: payload

payload:
  format: protobuf
  validate: registry

tables:
  bronze: bronze_events
  each: silver_{{type}}
  unified: unified_gold
"""

_ORDERS = """
payload:
  format: avro
  framing: confluent
  validate: registry

tables:
  each: "{{topic}}"
  partition_by: [_date]
  metadata: [key, topic, partition, offset, timestamp, schema_id, raw]
"""

_CHANGES = """\
source:
  type: files
  path: {source}
  format: avro
  settle: 0s                   # the demo puts whole files in place

cdc:
  format: datastream
  deletes: hard
  backfill: before_cdc

tables:
  each: "{{database}}_{{table}}"
"""

_TAIL = """
lake:
  path: {root}

trigger: available_now
"""


def pipeline_file(subject: str, *, kafka: bool, **values: str) -> str:
    """The text of a demo's file; values are YAML already."""
    source = _KAFKA_SOURCE if kafka else _DELTA_SOURCE
    bodies = {"games": source + _GAMES, "orders": source + _ORDERS, "cdc": _CHANGES}
    after = _ENDED if kafka else _WORKS
    text = _HEAD + bodies[subject] + _TAIL
    return text.format(subject=subject, after=after, **values)


# The folder of a demo: a lake, its source and schemas, and the file of the pipeline.

_MARKER = ".distributary-demo.json"
_SCHEMAS = "schemas"
_FILE_SCHEMA = "pipeline.schema.json"
_CHECKPOINTS = "_checkpoints"
_SUBJECTS = ("games", "orders", "cdc")


class About(Protocol):
    """What has to be known of a demo to make room for it."""

    @property
    def subject(self) -> str:
        """Also the name of its pipeline."""
        ...

    @property
    def topic(self) -> str:
        """The folder that stands for its source."""
        ...

    @property
    def kafka(self) -> bool:
        """Whether it needs a broker and a registry."""
        ...

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it may make."""
        ...


class DemoFolder:
    """Knows what a demo makes, and touches nothing else."""

    def __init__(self, path: Path, scene: About) -> None:
        self.given = path
        self.path = path.absolute()
        self.scene = scene

    @property
    def file(self) -> Path:
        """The pipeline file."""
        return self.path / f"{self.scene.subject}.yaml"

    @property
    def source(self) -> Path:
        """The table or folder that stands for a topic."""
        return self.path / self.scene.topic

    @property
    def schemas(self) -> Path:
        """The folder that stands for a registry."""
        return self.path / _SCHEMAS

    def newest_batch(self) -> int:
        """The newest batch that is decided, or -1."""
        return Manifests(at(f"{self.path}/{_CHECKPOINTS}/{self.scene.subject}/manifests")).newest()

    def begin(self) -> bool:
        """An empty demo; whether an earlier one had to go for it."""
        anew = self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        # said first: what is made from now on may be removed by the next demo
        made = {
            "made_by": f"distributary demo {self.scene.subject}",
            "folders": [self.scene.topic, *self.scene.tables],
        }
        (self.path / _MARKER).write_text(json.dumps(made, indent=2), encoding="utf-8")
        return anew

    def write_file(self, *, kafka: str = "", registry: str = "") -> None:
        """The pipeline file, and the schema by which editors know its keys."""
        schema = json.dumps(json_schema(), indent=2)
        (self.path / _FILE_SCHEMA).write_text(schema, encoding="utf-8")
        text = pipeline_file(
            self.scene.subject,
            kafka=self.scene.kafka,
            schema=_FILE_SCHEMA,
            root=_quoted(self.path),
            source=_quoted(self.source),
            schemas=_quoted(self.schemas),
            topic=self.scene.topic,
            bootstrap_servers=kafka,
            registry=registry,
        )
        self.file.write_text(text, encoding="utf-8")

    def _clear(self) -> bool:
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return False
        folders = self._earlier_folders()
        if folders is None:
            raise self._foreign("it was not made by a demo")
        mine = {_SCHEMAS, _FILE_SCHEMA, _MARKER, _CHECKPOINTS, layout.HOME, *folders}
        mine |= {f"{subject}.yaml" for subject in _SUBJECTS}
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in mine)
        if others:
            raise self._foreign(f"it holds {', '.join(others[:5])}")
        checkpoints = (at(f"{self.path}/{_CHECKPOINTS}/{subject}") for subject in _SUBJECTS)
        if any(state_of(folder) == "running" for folder in checkpoints):
            raise OwnedError(
                "the pipeline of this demo is running",
                where=str(self.path),
                next_step="stop it first, or choose another folder with --path",
            )
        # the marker goes last: a removal that was interrupted can be taken up again
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == _MARKER):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return True

    def _earlier_folders(self) -> list[str] | None:
        try:
            made = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
            return [str(name) for name in made["folders"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _foreign(self, evidence: str) -> ConfigError:
        return ConfigError(
            "the folder is not empty, and a demo begins with an empty one",
            code=ErrorCode.CONFIG_INVALID,
            where=str(self.path),
            evidence=evidence,
            next_step="choose another folder with --path, or empty this one yourself",
        )


def _quoted(path: Path) -> str:
    """A path as YAML reads it back, whatever is in it."""
    return "'" + str(path).replace("'", "''") + "'"


# The simulated side of a demo: one round of records after the other.


class Feed(Protocol):
    """Something that is sent in rounds, when it is asked to."""

    def next(self) -> bool:
        """Send one more round; False when there is none."""
        ...

    @property
    def messages(self) -> int:
        """How many records were sent so far."""
        ...


class RoundFeed:
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
        return True

    @property
    def sent(self) -> Sent:
        """Everything so far."""
        return Sent.total(self._parts)

    @property
    def messages(self) -> int:
        """How many records were sent so far."""
        return self.sent.messages


@contextmanager
def open_feed(call: Invocation, folder: DemoFolder, scene: Scene) -> Iterator[RoundFeed]:
    """What the demo sends, with whatever has to run for it; writes the pipeline's file."""
    if not scene.kafka:
        folder.write_file()
        registry = FileRegistry(folder.schemas, durable=False)
        yield RoundFeed(scene.rounds(registry), DeltaSink(folder.source))
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
            topic=scene.topic,
            bootstrap_servers=services.kafka,
            registry_url=services.registry,
        )
        call.out.note(f"broker {services.kafka}, registry {services.registry}")
        # they go as a whole: there will be nothing to clean
        with open_outlet(target, noted=False) as outlet:
            yield RoundFeed(scene.rounds(outlet.registry), outlet.sink)
        call.out.note("stopping them")
