"""`doctor`: one row per check, found against needed, and the command that fixes it; `explain`."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
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
    SetupError,
    glossary,
    meanings,
)
from distributary.model import layout
from distributary.model.check import Check, CheckState
from distributary.observe.log_format import listed

if TYPE_CHECKING:
    from distributary.config.load import Loaded
    from distributary.config.registry import RegistryConfig
    from distributary.operations.ground import Proof


app = single(LOOK)

_REGISTRY_PORT = 8081
"""The default port of the registry of `dev up`."""
_PROPERTY = "delta.setTransactionRetentionDuration"
_PYTHON = (3, 11)
_GIB = 1 << 30


_COLOURS = {CheckState.PASS: "green", CheckState.WARN: "yellow", CheckState.FAIL: "bold red"}


@verb(app, "doctor", "doctor distributary-demo/games.yaml")
def doctor(call: Invocation, file: OptionalFile = None, lake: LakeOption = None) -> int:
    """Check what a run needs, and say how to fix what does not work."""
    loaded = load_file(call, file) if file is not None else None
    checks = [*checks_of_machine(), *checks_for_file(loaded, lake)]
    failed = sum(check.state is CheckState.FAIL for check in checks)

    def draw(paper: Paper) -> None:
        paper.table(
            ("CHECK", "", "FOUND", "NEEDED"),
            ((c.name, styled(c.state, _COLOURS[c.state]), c.found, c.needed) for c in checks),
            indent=0,
        )
        for check in checks:
            if check.tried and (call.out.verbosity > 0 or check.state is not CheckState.PASS):
                paper.line(styled(f"{check.name}: ", "bold"), check.tried)
            if check.fix and check.state is not CheckState.PASS:
                paper.line(styled(f"{check.name}: ", "bold"), check.fix)
        if failed:
            paper.line(styled(f"{counted(failed, 'check')} failed", "bold red"))
        else:
            paper.line(styled("all requirements are met", "green"))

    call.out.show({"ok": not failed, "checks": checks}, draw)
    return 1 if failed else 0


def checks_of_machine() -> Iterator[Check]:
    """Yield the checks that every run needs."""
    import psutil

    installed = versions()
    good = sys.version_info[:2] >= _PYTHON
    yield Check(
        "python",
        CheckState.PASS if good else CheckState.FAIL,
        installed["Python"],
        ".".join(map(str, _PYTHON)) + " or newer",
        "install a newer Python, then distributary in it",
    )
    yield _guarded("java", _java)
    yield _guarded("connectors", _connectors)
    yield _guarded("spark", _spark)
    yield _decoders()
    free = psutil.virtual_memory().available
    yield Check(
        "memory",
        CheckState.PASS
        if free >= 2 * _GIB
        else CheckState.WARN
        if free >= _GIB
        else CheckState.FAIL,
        f"{size(free)} free",
        "2.0 GiB",
        "end other programs, or set spark.driver_memory: 1g",
    )


def checks_for_file(loaded: Loaded | None, lake: str | None) -> Iterator[Check]:
    """Yield the checks of lake and tables; with a file also of all that a run needs."""
    from distributary.engine.planning.strategies import strategy_of
    from distributary.engine.seams import needs_delta
    from distributary.source.source_entry import entry_of
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
    if needs_delta(loaded.config):
        yield _guarded("delta", lambda: _delta(loaded))
    if loaded.config.lake.registered_in is not None:
        yield _guarded("catalog", lambda: _catalog(loaded))
    registry, source = loaded.config.registry, loaded.config.source
    if registry is not None:
        yield _guarded("registry", lambda: registry_check(registry))
    for name, check in entry_of(source).checks(source, loaded.config):
        yield _guarded(name, check)
    strategy = strategy_of(loaded.config)
    url = strategy.source_url
    if url is not None:
        yield _guarded("database", lambda: _slots(url))
    if strategy.changes is not None:
        yield _guarded("order", lambda: _order(loaded))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run checks; turn an error that one raises into a failed check with the error's next step."""
    try:
        return check()
    except DistributaryError as error:
        evidence = error.evidence.splitlines()[-1:] or [error.where]
        found = f"{error.what}: {evidence[0]}" if evidence[0] else error.what
        return Check(name, CheckState.FAIL, found, fix=error.next_step)


def _java() -> Check:
    from distributary.spark.java import MINIMUM, require_java

    java = require_java()
    return Check("java", CheckState.PASS, f"{java.version} at {java.path}", f"{MINIMUM} or newer")


def _spark() -> Check:
    from distributary.spark.versions import NEEDED, require_installed, spark_version

    require_installed()
    delta = _locked("delta-spark_")
    named = f"Delta {delta}" if delta != "missing" else "without Delta Lake's own library"
    return Check("spark", CheckState.PASS, f"Spark {spark_version()}, {named}", NEEDED)


def _delta(loaded: Loaded) -> Check:
    from distributary.engine.seams import needs_delta
    from distributary.spark.versions import require_delta

    purpose = needs_delta(loaded.config)
    require_delta(None, purpose, loaded.config.spark.options)
    return Check("delta", CheckState.PASS, f"Delta Lake inside Spark, for {purpose}")


def _connectors() -> Check:
    import platformdirs

    from distributary.spark.jars import ensure_connectors, lock_key

    # only the jars that DISTRIBUTARY_JARS names are checked: doctor fetches nothing
    given = bool(os.environ.get("DISTRIBUTARY_JARS"))
    cache = platformdirs.user_cache_path("distributary") / "connectors" / lock_key()
    jars = ensure_connectors() if given else sorted(cache.glob("*.jar"))
    if not jars:
        return Check(
            "connectors",
            CheckState.WARN,
            "not fetched yet: the first run fetches them",
            "25 MB from a mirror",
            "python -m distributary.spark.jars",
        )
    return Check("connectors", CheckState.PASS, f"{counted(len(jars), 'file')} in {jars[0].parent}")


def _cluster(loaded: Loaded) -> Iterator[Check]:
    from distributary.spark.settings import SparkSettings

    settings = SparkSettings.of(loaded)
    if settings.is_local:
        return
    standalone = settings.master.startswith("spark://")
    yield Check(
        "cluster",
        CheckState.PASS if settings.authenticates else CheckState.WARN,
        "Spark's processes authenticate each other with a secret"
        if settings.authenticates
        else "any process that reaches the ports of the driver and the executors is trusted, "
        "unless the cluster's own settings say otherwise",
        "spark.authenticate",
        "set the cluster's secret as spark.conf spark.authenticate.secret: ${env:...}"
        if standalone
        else 'set spark.conf spark.authenticate: "true"; Spark generates the secret',
    )


def _decoders() -> Check:
    from distributary.decode.avro import fast_decoder as avro_engine
    from distributary.decode.protobuf import fast_decoder as protobuf_engine

    there = {"ptars": protobuf_engine.has_engine(), "pyruhvro": avro_engine.has_engine()}
    missing = [name for name, found in there.items() if not found]
    return Check(
        "decoders",
        CheckState.WARN if missing else CheckState.PASS,
        f"without {listed(missing)}: correct, and many times slower" if missing else "fast",
        "ptars for protobuf, pyruhvro for Avro",
        f"install distributary again with its requirements: {listed(missing)}",
    )


def _disk(folder: Path) -> Check:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    return Check(
        "disk",
        CheckState.PASS if free >= _GIB else CheckState.FAIL,
        f"{size(free)} free at {existing}",
        "1.0 GiB",
        "free space, or move the lake with lake.path",
    )


def _store(place: str, address: str) -> Iterator[Check]:
    """Test the properties of a store that the engine needs, in a temporary folder."""
    from distributary.operations.ground import prove_store

    try:
        yield from map(_proven, prove_store(place, address))
    except DistributaryError as error:
        # the address or the settings are invalid, so no store can be opened
        yield Check(place, CheckState.FAIL, f"{error.what}: {error.evidence}", fix=error.next_step)


def _claim(loaded: Loaded, checkpoint: str) -> Check:
    from distributary.operations.ground import prove_claim

    return _proven(prove_claim(checkpoint, lease=loaded.config.run.lease.total_seconds()))


def _proven(proof: Proof) -> Check:
    state = CheckState.PASS if proof.passed else CheckState.FAIL
    return Check(proof.name, state, proof.found, proof.needed, proof.fix, proof.tried)


def _exchange(loaded: Loaded, checkpoint: str) -> Check:
    """Return the result of `run.exchange`; ask the workers if needed."""
    from distributary.model.routing import planned_exchange
    from distributary.spark.masters import unreachable
    from distributary.spark.settings import SparkSettings

    settings = SparkSettings.of(loaded, short_lived=True)
    wanted = loaded.config.run.exchange
    planned = planned_exchange(wanted, local=settings.is_local and not settings.remote)
    if planned is not None:
        return Check("exchange", CheckState.PASS, f"{planned.way}: {planned.why}")
    why = unreachable(settings.master) if not settings.remote else ""
    if why:
        return Check(
            "exchange",
            CheckState.FAIL,
            why,
            "an answer from the workers",
            "start the cluster, or correct spark.master",
            f"looked for {settings.master}",
        )
    from distributary.engine.steps.hops import choose_exchange
    from distributary.operations.ground import scratch
    from distributary.spark.session import spark_session
    from distributary.store.base import local_path

    # the folder that a run would use: beside its progress, or on this machine if that is in a
    # bucket
    place = checkpoint if local_path(checkpoint) is not None else tempfile.gettempdir()
    session = spark_session(settings, app_name=f"{loaded.config.name} doctor")
    with scratch(place) as folder:
        chosen = choose_exchange(wanted, session, Path(folder.address))
    return Check(
        "exchange",
        CheckState.PASS,
        f"{chosen.way}: {chosen.why}",
        tried="ran a job on the cluster to look for a file of the driver",
    )


def _slots(url: str) -> Check:
    """Ask the source database for its replication slots."""
    from distributary.engine.slots import ask_slots

    slots = ask_slots(url)
    state = CheckState.WARN if not slots or any(slot.lost for slot in slots) else CheckState.PASS
    found = listed((f"{s.name} holds back {size(s.bytes)}" for s in slots), most=3)
    return Check(
        "database",
        state,
        f"{counted(len(slots), 'replication slot')}{': ' * bool(slots)}{found}",
        "a slot of this database that has lost no log",
        "look at pg_replication_slots, and at the connector that reads the database",
    )


def _marks(folder: Path, loaded: Loaded | None) -> Check:
    found = tables_with_expiring_marks(folder, loaded.config.name if loaded else None)
    if not found:
        return Check("marks", CheckState.PASS, "no table deletes its record of committed batches")
    return Check(
        "marks",
        CheckState.WARN,
        f"{_PROPERTY} is set on {listed(found, most=3)}",
        "unset the property: a batch that is repeated later than that would be written twice",
        f"ALTER TABLE delta.`{folder / found[0]}` UNSET TBLPROPERTIES ('{_PROPERTY}')",
    )


def tables_with_expiring_marks(lake: Path, pipeline: str | None) -> list[str]:
    """Return tables with a property that makes transaction marks expire."""
    from distributary.delta.tables import open_table
    from distributary.observe.ledger.ledger import Ledger

    if not (lake / layout.HOME).is_dir():
        return []
    found = []
    for summary in Ledger(str(lake)).tables(pipeline, schema_ids=False):
        table = open_table(layout.place(str(lake), summary.path))
        if table is not None and _PROPERTY in table.metadata().configuration:
            found.append(summary.table)
    return found


def _order(loaded: Loaded) -> Check:
    """Name the merged tables that an earlier release put in the order of the source's times."""
    from distributary.changes.rebuild import is_in_old_order
    from distributary.delta.log import snapshot_of
    from distributary.engine.planning.table_book import log_of, table_folder
    from distributary.model.table import Role
    from distributary.observe.ledger.ledger import Ledger

    config = loaded.config
    known = Ledger(config.lake.address).tables(config.name, schema_ids=False)
    merged = [each.table for each in known if each.role == Role.MERGED]
    old: list[str] = []
    by_spark: list[str] = []
    for name in merged:
        table = snapshot_of(table_folder(config, name))
        if table is not None and is_in_old_order(table, table_folder(config, log_of(name))):
            (by_spark if table.no_changes() else old).append(name)
    if not old and not by_spark:
        return Check("order", CheckState.PASS, f"{counted(len(merged), 'merged table')} looked at")
    of = counted(len(merged), "merged table")
    names = listed([*old, *by_spark], most=3)
    first = shlex.quote([*old, *by_spark][0])
    fix = (
        f"`distributary rebuild {first}` makes it again from its log; the next batch with a change "
        "of such a table does so, too"
        if old
        else "only Spark may write it: stop the pipeline, move the folder of the table away, and "
        f"`distributary rebuild {first}` makes a new one from its log"
    )
    return Check(
        "order",
        CheckState.WARN,
        f"{len(old) + len(by_spark):,} of {of} with rows in the order of the source's times: "
        f"{names}",
        "rows in the order of positions",
        fix,
        "read up to four files of each table without the property distributary.order; "
        "`verify --all` reads them all",
    )


def _catalog(loaded: Loaded) -> Check:
    from distributary.engine.registrar import check_catalog
    from distributary.observe.cards import read_catalog_state

    found, lasting = check_catalog(loaded.config)
    state = read_catalog_state(loaded.config.lake.address, loaded.config.name)
    if state is not None and state.problems:
        first = state.problems[0]
        return Check(
            "catalog",
            CheckState.WARN,
            f"{found}; {counted(state.waiting, 'table')} wait: {state.error}",
            fix=first.next_step,
        )
    return Check(
        "catalog",
        CheckState.PASS if lasting else CheckState.WARN,
        found,
        "" if lasting else "a catalog that is kept after the session",
        "set lake.catalog of type hive, unity or glue; or a metastore in spark.conf",
    )


def registry_check(settings: RegistryConfig) -> Check:
    """Read the subjects of the folder or the server, as a check."""
    from distributary.config.base import hide_credentials
    from distributary.registry.http.http_registry import HttpRegistry

    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    registry = open_registry(settings)
    try:
        subjects = registry.subjects()
    except RegistryUnavailableError as error:
        # an answer that no registry sends proves that another program listens there
        if settings.path is not None or error.code is not ErrorCode.REGISTRY_UNAVAILABLE:
            raise
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        fix = _start_registry(settings)
        return Check("registry", CheckState.FAIL, found, f"a registry at {where}", fix)
    state = CheckState.PASS if subjects else CheckState.WARN
    fix = "register the schemas before records arrive"
    if not subjects and settings.context is not None and isinstance(registry, HttpRegistry):
        known = registry.contexts()
        if settings.context not in known:
            fix = f"correct registry.context: there are {listed(sorted(known), most=5)}"
    return Check("registry", state, f"{counted(len(subjects), 'subject')} in {where}", fix=fix)


def _start_registry(settings: RegistryConfig) -> str:
    from distributary.config.base import is_loopback

    address = urlsplit(settings.addresses[0])
    host = address.hostname or ""
    if is_loopback(host):
        port = address.port or _REGISTRY_PORT
        other = f" --registry-port {port}" if port != _REGISTRY_PORT else ""
        return f"distributary dev up{other}"
    plain = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")
    return f"curl -sS {shlex.quote(f'{plain}/subjects')}"


def versions() -> dict[str, str]:
    """Return each part with its version, or `missing`."""
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
    """Return the version of a locked connector; `missing` if this Spark has none."""
    from distributary.spark.jars import connector_versions

    try:
        named = connector_versions()
    except SetupError:
        return "missing"
    return next((rev for name, rev in named.items() if name.startswith(prefix)), "missing")


# `explain`: what an error code or a word means.

explain_app = single(LOOK)

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[`*]|<[^>]+>|\\(?=\|)")


def _known(incomplete: str) -> list[str]:
    """Return the codes and words with this beginning, for the Tab key."""
    known = [*meanings(), *glossary()]
    return [each for each in known if each.casefold().startswith(incomplete.casefold())]


@verb(explain_app, "explain SOURCE_UNAVAILABLE", "explain parked", "explain")
def explain(
    call: Invocation,
    what: Annotated[
        str | None,
        argument(
            "An error code or a word of the glossary; by default a list of both.",
            metavar="CODE|WORD",
            autocompletion=_known,
        ),
    ] = None,
) -> None:
    """Explain an error code or a word of the glossary, and the next step."""
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
        # imported here, because settings take long to import and help needs none
        from distributary.config.base import nearest

        near = nearest(code, meanings()) or nearest(word, glossary())
        raise DistributaryError(
            f"there is no error code or glossary term {what[:100]!r}",
            code=ErrorCode.NOT_FOUND,
            where="command line",
            next_step=f"distributary explain {near}".strip(),
        )


def _plain(text: str) -> str:
    """Return a cell of a page without its markup."""
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
