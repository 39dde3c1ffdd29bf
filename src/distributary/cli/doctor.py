"""`doctor`: one row per check, found against needed, and the command that fixes it; `explain`."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from distributary import __version__
from distributary.cli.command.lakes import load_file, open_registry
from distributary.cli.command.output import Paper, counted, size, styled
from distributary.cli.command.verb import (
    LAKE_VARIABLE,
    LOOK,
    PLACES,
    Invocation,
    LakeOption,
    OptionalFile,
    argument,
    single,
    verb,
)
from distributary.errors import (
    DistributaryError,
    ErrorCode,
    RegistryUnavailableError,
    SourceUnavailableError,
    glossary,
    meanings,
)
from distributary.model import layout
from distributary.observe.log_format import listed

if TYPE_CHECKING:
    from distributary.config.kafka import KafkaSource, Registry
    from distributary.config.lake import Lake
    from distributary.config.load import Loaded
    from distributary.config.source import DeltaSource, FilesSource
    from distributary.operations.ground import Proof


app = single(LOOK)

_KAFKA_PORT, _REGISTRY_PORT = 9092, 8081
"""Those of `dev up`."""
_PROPERTY = "delta.setTransactionRetentionDuration"
_PYTHON = (3, 11)
_GIB = 1 << 30
_CONNECT_SECONDS = 5.0


class State(StrEnum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, found and needed."""

    name: str
    state: State
    found: str
    needed: str = ""
    fix: str = ""
    """What to type or to do."""
    tried: str = ""
    """What was done to find out, where that is more than a look."""


_COLOURS = {State.PASS: "green", State.WARN: "yellow", State.FAIL: "bold red"}


@verb(app, "doctor", "doctor distributary-demo/games.yaml")
def doctor(call: Invocation, file: OptionalFile = None, lake: LakeOption = None) -> int:
    """Check what a run needs, and say how to fix what does not work."""
    loaded = load_file(call, file) if file is not None else None
    checks = [*checks_of_machine(), *checks_for_file(loaded, lake)]
    failed = sum(check.state is State.FAIL for check in checks)

    def draw(paper: Paper) -> None:
        paper.table(
            ("CHECK", "", "FOUND", "NEEDED"),
            ((c.name, styled(c.state, _COLOURS[c.state]), c.found, c.needed) for c in checks),
            indent=0,
        )
        for check in checks:
            if check.tried and (call.out.verbosity > 0 or check.state is not State.PASS):
                paper.line(styled(f"{check.name}: ", "bold"), check.tried)
            if check.fix and check.state is not State.PASS:
                paper.line(styled(f"{check.name}: ", "bold"), check.fix)
        if failed:
            paper.line(styled(f"{counted(failed, 'check')} failed", "bold red"))
        else:
            paper.line(styled("all that is needed is there", "green"))

    call.out.show({"ok": not failed, "checks": checks}, draw)
    return 1 if failed else 0


def checks_of_machine() -> Iterator[Check]:
    """What every run needs."""
    import psutil

    installed = versions()
    good = sys.version_info[:2] >= _PYTHON
    yield Check(
        "python",
        State.PASS if good else State.FAIL,
        installed["Python"],
        ".".join(map(str, _PYTHON)) + " or newer",
        "install a newer Python, then distributary in it",
    )
    yield _guarded("java", _java)
    yield _guarded("connectors", _connectors)
    yield Check(
        "spark",
        State.FAIL if installed["Spark"] == "missing" else State.PASS,
        f"Spark {installed['Spark']}, Delta {installed['Delta']}",
        fix="pip install pyspark",
    )
    yield _decoders()
    free = psutil.virtual_memory().available
    yield Check(
        "memory",
        State.PASS if free >= 2 * _GIB else State.WARN if free >= _GIB else State.FAIL,
        f"{size(free)} free",
        "2.0 GiB",
        "end other programs, or set spark.driver_memory: 1g",
    )


def checks_for_file(loaded: Loaded | None, lake: str | None) -> Iterator[Check]:
    """Lake and tables; with a file also checkpoint, exchange, catalog, source and registry."""
    from distributary.config.kafka import KafkaSource
    from distributary.config.source import FilesSource
    from distributary.store.base import absolute, introduce, local_path

    usual = os.environ.get(LAKE_VARIABLE, next((p for p in PLACES if Path(p).is_dir()), "."))
    address = lake or (loaded.config.lake.path if loaded else None) or usual
    folder = local_path(address)
    options = loaded.config.lake.options if loaded else {}
    introduce(address, options)
    if folder is not None:
        yield _disk(folder)
    yield from _store("lake", absolute(address))
    if folder is not None:
        yield _guarded("marks", lambda: _marks(folder, loaded))
    if loaded is None:
        return
    checkpoint = absolute(loaded.config.lake.checkpoint)
    introduce(checkpoint, options)
    yield from _store("checkpoint", checkpoint)
    yield _guarded("claim", lambda: _claim(loaded, checkpoint))
    yield from _cluster(loaded)
    yield _guarded("exchange", lambda: _exchange(loaded, checkpoint))
    if loaded.config.lake.registered_in is not None:
        yield _guarded("catalog", lambda: _catalog(loaded))
    registry, source = loaded.config.registry, loaded.config.source
    if registry is not None:
        yield _guarded("registry", lambda: registry_check(registry))
    if isinstance(source, KafkaSource):
        yield _guarded("broker", lambda: _broker(source))
        yield _reader(source)
    elif isinstance(source, FilesSource):
        yield _guarded("source", lambda: _files(source, loaded.config.lake))
    else:
        yield _guarded("source", lambda: _table(loaded, source))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that raises is a check that failed, and its error says how to fix it."""
    try:
        return check()
    except DistributaryError as error:
        evidence = error.evidence.splitlines()[-1:] or [error.where]
        found = f"{error.what}: {evidence[0]}" if evidence[0] else error.what
        return Check(name, State.FAIL, found, fix=error.next_step)


def _java() -> Check:
    from distributary.spark.java import MINIMUM, require_java

    java = require_java()
    return Check("java", State.PASS, f"{java.version} at {java.path}", f"{MINIMUM} or newer")


def _connectors() -> Check:
    import platformdirs

    from distributary.spark.jars import ensure_connectors, lock_key

    # files that were named are looked at; nothing is fetched here
    given = bool(os.environ.get("DISTRIBUTARY_JARS"))
    cache = platformdirs.user_cache_path("distributary") / "connectors" / lock_key()
    jars = ensure_connectors() if given else sorted(cache.glob("*.jar"))
    if not jars:
        return Check(
            "connectors",
            State.WARN,
            "not fetched yet: the first run does it",
            "25 MB from a mirror",
            "python -m distributary.spark.jars",
        )
    return Check("connectors", State.PASS, f"{counted(len(jars), 'file')} in {jars[0].parent}")


def _cluster(loaded: Loaded) -> Iterator[Check]:
    from distributary.spark.settings import SparkSettings

    settings = SparkSettings.of(loaded)
    if settings.is_local:
        return
    standalone = settings.master.startswith("spark://")
    yield Check(
        "cluster",
        State.PASS if settings.authenticates else State.WARN,
        "Spark's processes ask each other for a secret"
        if settings.authenticates
        else "whoever reaches the ports of the driver and the executors is believed, "
        "unless the cluster's own settings say otherwise",
        "spark.authenticate",
        "give the cluster's secret as spark.conf spark.authenticate.secret: ${env:...}"
        if standalone
        else 'set spark.conf spark.authenticate: "true"; Spark makes the secret',
    )


def _decoders() -> Check:
    from distributary.decode.avro import engine as avro_engine
    from distributary.decode.protobuf import engine as protobuf_engine

    there = {"ptars": protobuf_engine.has_engine(), "pyruhvro": avro_engine.has_engine()}
    missing = [name for name, found in there.items() if not found]
    return Check(
        "decoders",
        State.WARN if missing else State.PASS,
        f"without {listed(missing)}: correct, and many times slower" if missing else "fast",
        "ptars for protobuf, pyruhvro for Avro",
        f"install distributary again with all that it requires: {listed(missing)}",
    )


def _disk(folder: Path) -> Check:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    return Check(
        "disk",
        State.PASS if free >= _GIB else State.FAIL,
        f"{size(free)} free at {existing}",
        "1.0 GiB",
        "make room, or move the lake with lake.path",
    )


def _store(place: str, address: str) -> Iterator[Check]:
    """What the engine needs of a store, tried in a folder of its own that is removed again."""
    from distributary.operations.ground import prove_store

    try:
        yield from map(_proven, prove_store(place, address))
    except DistributaryError as error:
        # an address or settings that no store can be opened with
        yield Check(place, State.FAIL, f"{error.what}: {error.evidence}", fix=error.next_step)


def _claim(loaded: Loaded, checkpoint: str) -> Check:
    from distributary.operations.ground import prove_claim

    return _proven(prove_claim(checkpoint, lease=loaded.config.run.lease.total_seconds()))


def _proven(proof: Proof) -> Check:
    state = State.PASS if proof.passed else State.FAIL
    return Check(proof.name, state, proof.found, proof.needed, proof.fix, proof.tried)


def _exchange(loaded: Loaded, checkpoint: str) -> Check:
    """What `run.exchange` comes to; where the workers have to be asked, they are."""
    from distributary.model.plan import planned_exchange
    from distributary.spark.settings import SparkSettings

    settings = SparkSettings.of(loaded, short_lived=True)
    wanted = loaded.config.run.exchange
    planned = planned_exchange(wanted, local=settings.is_local and not settings.remote)
    if planned is not None:
        return Check("exchange", State.PASS, f"{planned.way}: {planned.why}")
    unreachable = _unreachable(settings.master) if not settings.remote else ""
    if unreachable:
        return Check(
            "exchange",
            State.FAIL,
            unreachable,
            "an answer from the workers",
            "start the cluster, or correct spark.master",
            f"looked for {settings.master}",
        )
    from distributary.engine.stage import choose_exchange
    from distributary.operations.ground import scratch
    from distributary.spark.session import spark_session
    from distributary.store.base import local_path

    # where a run would look: beside its progress, or, where that is in a bucket, on this machine
    place = checkpoint if local_path(checkpoint) is not None else tempfile.gettempdir()
    session = spark_session(settings, app_name=f"{loaded.config.name} doctor")
    with scratch(place) as folder:
        chosen = choose_exchange(wanted, session, Path(folder.address))
    return Check(
        "exchange",
        State.PASS,
        f"{chosen.way}: {chosen.why}",
        tried="ran a job on the cluster that looks for a file of the driver",
    )


def _unreachable(master: str) -> str:
    """Why Spark would wait for minutes in vain; empty where nothing speaks against it."""
    if master.startswith("yarn"):
        known = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
        return "" if known else "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"
    failed = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not master.startswith("spark://") or not port.isdigit():
            return ""
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            failed.append(f"{address}: {error.strerror or type(error).__name__}")
        else:
            return ""
    return f"no master answers: {listed(failed)}"


def _marks(folder: Path, loaded: Loaded | None) -> Check:
    found = tables_with_expiring_marks(folder, loaded.config.name if loaded else None)
    if not found:
        return Check("marks", State.PASS, "no table forgets what was committed to it")
    return Check(
        "marks",
        State.WARN,
        f"{_PROPERTY} is set on {listed(found, most=3)}",
        "never set: a batch repeated later than that would be doubled",
        f"ALTER TABLE delta.`{folder / found[0]}` UNSET TBLPROPERTIES ('{_PROPERTY}')",
    )


def tables_with_expiring_marks(lake: Path, pipeline: str | None) -> list[str]:
    """Tables on which somebody has set that transaction marks are forgotten."""
    from distributary.delta.tables import open_table
    from distributary.observe.ledger import Ledger

    if not (lake / layout.HOME).is_dir():
        return []
    found = []
    for summary in Ledger(str(lake)).tables(pipeline, schema_ids=False):
        table = open_table(layout.place(str(lake), summary.path))
        if table is not None and _PROPERTY in table.metadata().configuration:
            found.append(summary.table)
    return found


def _catalog(loaded: Loaded) -> Check:
    from distributary.engine.catalog import check_catalog
    from distributary.observe.pipelines import read_catalog_state

    found, lasting = check_catalog(loaded.config)
    state = read_catalog_state(loaded.config.lake.address, loaded.config.name)
    if state is not None and state.problems:
        first = state.problems[0]
        return Check(
            "catalog",
            State.WARN,
            f"{found}; {counted(state.waiting, 'table')} wait: {state.error}",
            fix=first.next_step,
        )
    return Check(
        "catalog",
        State.PASS if lasting else State.WARN,
        found,
        "" if lasting else "a catalog that outlives a session",
        "set lake.catalog of type hive, unity or glue; or a metastore in spark.conf",
    )


def _table(loaded: Loaded, source: DeltaSource) -> Check:
    from distributary.config.source import storage_options_of
    from distributary.source.delta import DeltaSource as Table

    table = Table(source, storage_options=storage_options_of(source, loaded.config.lake))
    try:
        # what a task does: the log alone says nothing about the files
        first = next(table.peek(table.first()), None)
    except SourceUnavailableError as error:
        if error.context.get("reason") != "missing":
            raise
        registry = loaded.config.registry.path if loaded.config.registry else None
        return Check(
            "source",
            State.FAIL,
            f"no Delta table at {source.path}",
            f"a table with column {source.value}",
            f"distributary produce games --to delta {source.path} "
            f"--registry {registry or './schemas'}",
        )
    rows = 0 if first is None else first.num_rows
    version = table.newest()["version"] - 1
    found = f"{source.path} at version {version}, {counted(rows, 'record')} read of its first file"
    return Check("source", State.PASS, found, f"a column {source.value}")


def _files(source: FilesSource, lake: Lake) -> Check:
    """What a run would find: the folder or bucket answers, a file fits, and it can be opened."""
    from distributary.config.source import storage_options_of
    from distributary.model.names import printable
    from distributary.source.files.source import FilesSource as Files

    options = storage_options_of(source, lake)
    # nothing is kept: neither what was found nor a schema
    wanted, others = Files(source, folder="", schemas="", storage_options=options).survey()
    needed = f"files in <table>/yyyy/mm/dd/hh/mm/, or anywhere with a suffix of {source.format}"
    if wanted:
        held = size(sum(file.size for file in wanted))
        found = f"{counted(len(wanted), 'file')}, {held}, the first is {printable(wanted[0].path)}"
        return Check("source", State.PASS, f"{source.root} has {found}", needed)
    return Check(
        "source",
        State.WARN,
        f"{source.root} has {counted(others, 'file')}, and none of them is read"
        if others
        else f"{source.root} has no file yet",
        needed,
        "compare path, format, include, exclude and start_date of source with what lies there",
    )


def _broker(source: KafkaSource) -> Check:
    from distributary.source.kafka import Broker

    servers = source.bootstrap_servers
    broker = Broker(source.client_options())
    try:
        partitions = broker.partitions(source.topics, source.topic_pattern)
        newest, oldest = broker.latest(partitions), broker.earliest(partitions)
    except SourceUnavailableError as error:
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        fix = _create(source) if error.what.startswith("the topic") else _start_broker(servers)
        return Check("broker", State.FAIL, found, f"a broker at {servers}", fix)
    if not partitions:
        pattern = source.topic_pattern or ""
        return Check(
            "broker",
            State.WARN,
            f"{servers} answers, but no topic fits {pattern}",
            "a topic to read",
            "create one, or correct source.topic_pattern",
        )
    topics = sorted({topic for topic, _ in partitions})
    records = sum(newest[one] - oldest[one] for one in partitions)
    found = (
        f"{servers} has {counted(len(partitions), 'partition')} of {listed(topics, most=3)}, "
        f"with {counted(records, 'offset')} to read"
    )
    return Check("broker", State.PASS, found)


def _reader(source: KafkaSource) -> Check:
    """Who reads the records, and why."""
    if source.is_native:
        return Check("reader", State.PASS, "native: tasks read by themselves, with librdkafka")
    if source.reader == "spark":
        return Check("reader", State.PASS, "spark: source.reader says so")
    why = [f"source.{'.'.join(map(str, place))} {why}" for place, why in source.only_for_java()]
    found = f"spark: {listed(why, most=3)}"
    return Check("reader", State.PASS, found)


def registry_check(settings: Registry) -> Check:
    """Asks the folder or the server for its subjects."""
    from distributary.config.base import hide_credentials
    from distributary.registry.http.registry import HttpRegistry

    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    registry = open_registry(settings)
    try:
        subjects = registry.subjects()
    except RegistryUnavailableError as error:
        # garbage is an answer: something else listens there
        if settings.path is not None or error.code is not ErrorCode.REGISTRY_UNAVAILABLE:
            raise
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        fix = _start_registry(settings)
        return Check("registry", State.FAIL, found, f"a registry at {where}", fix)
    state = State.PASS if subjects else State.WARN
    fix = "register the schemas before records arrive"
    if not subjects and settings.context is not None and isinstance(registry, HttpRegistry):
        known = registry.contexts()
        if settings.context not in known:
            fix = f"correct registry.context: there are {listed(sorted(known), most=5)}"
    return Check("registry", state, f"{counted(len(subjects), 'subject')} in {where}", fix=fix)


def _start_broker(servers: str) -> str:
    from distributary.config.base import is_loopback

    addresses = [urlsplit(f"//{each.rpartition('://')[2]}") for each in servers.split(",")]
    host, port = addresses[0].hostname or "", addresses[0].port or _KAFKA_PORT
    if all(is_loopback(each.hostname or "") for each in addresses):
        other = f" --kafka-port {port}" if port != _KAFKA_PORT else ""
        return f"distributary dev up{other}"
    return f"nc -vz {shlex.quote(host)} {port}"


def _start_registry(settings: Registry) -> str:
    from distributary.config.base import is_loopback

    address = urlsplit(settings.addresses[0])
    host = address.hostname or ""
    if is_loopback(host):
        port = address.port or _REGISTRY_PORT
        other = f" --registry-port {port}" if port != _REGISTRY_PORT else ""
        return f"distributary dev up{other}"
    plain = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")
    return f"curl -sS {shlex.quote(f'{plain}/subjects')}"


def _create(source: KafkaSource) -> str:
    topics = " ".join(f"--topic {shlex.quote(each)}" for each in source.topics[:1])
    server = source.bootstrap_servers.split(",")[0]
    return f"kafka-topics.sh --bootstrap-server {server} --create --if-not-exists {topics}"


def versions() -> dict[str, str]:
    """Each part and its version; `missing` for what is not there."""
    from distributary.spark.java import find_java

    java = find_java()
    return {
        "distributary": __version__,
        "Python": platform.python_version(),
        "Java": java.version if java else "missing",
        "Spark": _installed("pyspark"),
        "Delta": _locked("delta-spark_"),
        "deltalake": _installed("deltalake"),
        "pyarrow": _installed("pyarrow"),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _installed(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _locked(prefix: str) -> str:
    import xml.etree.ElementTree as ElementTree

    from distributary.spark.jars import JVM

    lock = ElementTree.parse(JVM / "ivy.xml")  # noqa: S314 - a file of this package
    found = (d for d in lock.iter("dependency") if d.get("name", "").startswith(prefix))
    return next(found).get("rev", "missing")


# `explain`: what an error code or a word means.

explain_app = single(LOOK)

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[`*]|<[^>]+>|\\(?=\|)")


def _known(incomplete: str) -> list[str]:
    """Codes and words that begin like this, for Tab."""
    known = [*meanings(), *glossary()]
    return [each for each in known if each.casefold().startswith(incomplete.casefold())]


@verb(explain_app, "explain SOURCE_UNAVAILABLE", "explain parked", "explain")
def explain(
    call: Invocation,
    what: Annotated[
        str | None,
        argument(
            "An error code or a word of the glossary; a list of both when left out.",
            metavar="CODE|WORD",
            autocompletion=_known,
        ),
    ] = None,
) -> None:
    """What an error code or a word means, and what to do about it."""
    if what is None:
        data = {"codes": sorted(meanings()), "words": list(glossary())}
        call.out.show(data, _draw_all)
        return
    word, code = what.strip().casefold(), what.strip().upper()
    if code in meanings():
        meaning, next_step = map(_plain, meanings()[code])
        call.out.show(
            {"code": code, "meaning": meaning, "next_step": next_step},
            lambda paper: _draw(paper, code, meaning, next_step),
        )
    elif word in glossary():
        text = _plain(glossary()[word])
        call.out.show({"word": word, "meaning": text}, lambda paper: _draw(paper, word, text))
    else:
        # settings are heavy to import, and help does without them
        from distributary.config.base import nearest

        near = nearest(code, meanings()) or nearest(word, glossary())
        raise DistributaryError(
            f"there is no code and no word {what[:100]!r}",
            code=ErrorCode.NOT_FOUND,
            where="command line",
            next_step=f"distributary explain {near}".strip(),
        )


def _plain(text: str) -> str:
    """A cell of a page without its markup."""
    return _MARKUP.sub("", _LINK.sub(r"\1", text))


def _draw(paper: Paper, name: str, meaning: str, next_step: str = "") -> None:
    paper.line(styled(name, "bold"))
    paper.line(f"  {meaning}")
    if next_step:
        paper.line(styled("  next  ", "dim"), next_step)


def _draw_all(paper: Paper) -> None:
    paper.line(styled("Codes", "bold"))
    for code in sorted(meanings()):
        paper.line(f"  {code}")
    paper.line(styled("Words", "bold"))
    paper.line(f"  {', '.join(glossary())}")
