"""What is checked: this machine, and what one pipeline file needs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import platformdirs
import psutil

from distributary.cli.actions.check import Check, State
from distributary.cli.actions.service_checks import broker_check, registry_check
from distributary.cli.actions.table_checks import tables_with_expiring_marks
from distributary.cli.lakes import PLACES, VARIABLE
from distributary.cli.words import counted, listed, size
from distributary.config.kafka import KafkaSource
from distributary.config.lake import local_path
from distributary.config.load import Loaded
from distributary.config.source import DeltaSource
from distributary.decode import avro_engine, protobuf_engine
from distributary.errors import DistributaryError
from distributary.publish.folder import Folder, reaching
from distributary.run.connectors import ensure_connectors, lock_key
from distributary.run.java import MINIMUM, require_java
from distributary.run.spark_conf import SparkSettings
from distributary.stores.known import introduce
from distributary.version import versions

_PYTHON = (3, 11)
_GIB = 1 << 30
_MOST_SKEW_SECONDS = 5.0


def checks_of_machine() -> Iterator[Check]:
    """What every run needs."""
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
        mend="pip install pyspark",
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
    """Lake, clock and tables; with a file also its source and its registry."""
    address = lake or (loaded.config.lake.path if loaded else None) or _usual_lake()
    folder = local_path(address)
    if folder is not None:
        yield from _folder_checks(folder)
        yield _guarded("marks", lambda: _marks(folder, loaded))
    else:
        yield _guarded("lake", lambda: _store(address, loaded))
    if loaded is None:
        return
    yield from _cluster(loaded)
    registry, source = loaded.config.registry, loaded.config.source
    if registry is not None:
        yield _guarded("registry", lambda: registry_check(registry))
    if isinstance(source, KafkaSource):
        yield _guarded("broker", lambda: broker_check(source))
    else:
        yield _guarded("source", lambda: _source(loaded))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that raises is a check that failed, and its error says how to mend it."""
    try:
        return check()
    except DistributaryError as error:
        evidence = error.evidence.splitlines()[-1:] or [error.where]
        found = f"{error.what}: {evidence[0]}" if evidence[0] else error.what
        return Check(name, State.FAIL, found, mend=error.next_step)


def _java() -> Check:
    java = require_java()
    return Check("java", State.PASS, f"{java.version} at {java.path}", f"{MINIMUM} or newer")


def _connectors() -> Check:
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
            "python -m distributary.run.connectors",
        )
    return Check("connectors", State.PASS, f"{counted(len(jars), 'file')} in {jars[0].parent}")


def _cluster(loaded: Loaded) -> Iterator[Check]:
    settings = SparkSettings.from_config(loaded.config.spark)
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
    there = {"ptars": protobuf_engine.has_engine(), "pyruhvro": avro_engine.has_engine()}
    missing = [name for name, found in there.items() if not found]
    return Check(
        "decoders",
        State.WARN if missing else State.PASS,
        f"without {listed(missing)}: correct, and many times slower" if missing else "fast",
        "ptars for protobuf, pyruhvro for Avro",
        f"install distributary again with all that it requires: {listed(missing)}",
    )


def _folder_checks(folder: Path) -> Iterator[Check]:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    yield Check(
        "disk",
        State.PASS if free >= _GIB else State.FAIL,
        f"{size(free)} free at {existing}",
        "1.0 GiB",
        "make room, or move the lake with lake.path",
    )
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".distributary-doctor-") as probe:
            skew = abs(os.stat(probe.name).st_mtime - time.time())
    except OSError as error:
        yield Check(
            "lake",
            State.FAIL,
            f"{existing} cannot be written: {error.strerror}",
            "a folder that can be written",
            f"chmod u+w {existing}",
        )
        return
    yield Check("lake", State.PASS, f"{existing} can be written")
    yield Check(
        "clock",
        State.PASS if skew <= _MOST_SKEW_SECONDS else State.FAIL,
        f"{skew:.1f} s apart from the lake's",
        f"{_MOST_SKEW_SECONDS:.0f} s at most",
        "set the clock, for example with timedatectl set-ntp true",
    )


def _store(address: str, loaded: Loaded | None) -> Check:
    introduce(address, loaded.config.lake.options if loaded else {})
    with reaching(address):
        store, name = Folder(address), f"_distributary/doctor-{uuid.uuid4().hex}"
        store.write(name, b"?")
        store.read(name)
        store.remove(name)
    return Check("lake", State.PASS, f"{address} can be written and read")


def _marks(folder: Path, loaded: Loaded | None) -> Check:
    found = tables_with_expiring_marks(folder, loaded.config.name if loaded else None)
    if not found:
        return Check("marks", State.PASS, "no table forgets what was committed to it")
    return Check(
        "marks",
        State.WARN,
        f"delta.setTransactionRetentionDuration is set on {listed(found, most=3)}",
        "never set: a batch repeated later than that would be doubled",
        f"ALTER TABLE delta.`{folder / found[0]}` "
        "UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')",
    )


def _source(loaded: Loaded) -> Check:
    from distributary.observe.delta import open_table

    source = loaded.config.source
    if not isinstance(source, DeltaSource):
        return Check("source", State.WARN, f"a source of type {source.type} is not checked")
    table = open_table(source.path, loaded.config.lake.options or None)
    if table is None:
        registry = loaded.config.registry.path if loaded.config.registry else None
        return Check(
            "source",
            State.FAIL,
            f"no Delta table at {source.path}",
            f"a table with column {source.value}",
            f"distributary produce games --to delta {source.path} "
            f"--registry {registry or './schemas'}",
        )
    names = [field.name for field in table.schema().fields]
    good = source.value in names
    return Check(
        "source",
        State.PASS if good else State.FAIL,
        f"{source.path} at version {table.version()}, columns {listed(names)}",
        f"a column {source.value}",
        "set source.value to the column that holds the message",
    )


def _usual_lake() -> str:
    with suppress(KeyError):
        return os.environ[VARIABLE]
    return next((place for place in PLACES if Path(place).is_dir()), ".")
