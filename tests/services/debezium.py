"""Kafka Connect on this machine, with Debezium's connectors for PostgreSQL and MariaDB."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import platformdirs

from distributary.errors import ErrorCode, SetupError
from distributary.spark.jars import JVM, Lock, Progress, ensure, fetch_now
from distributary.spark.java import require_java
from distributary_lab.services.processes import HOST, Running, launch
from distributary_lab.services.servers import ensure_artifacts, small_jvm
from distributary_lab.services.services import fresh
from tests.services.mariadb import USER as MARIADB_USER
from tests.services.mariadb import MariaDB
from tests.services.postgres import DATABASE, USER, Postgres, Single

# Settings of Debezium's connector: what it follows, and in which shape it writes events.

Settings = Mapping[str, str]

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.apicurio.registry.utils.converter.AvroConverter"
_BOTH = ("key", "value")


def json_events(*, schemas: bool) -> dict[str, str]:
    """JSON, in which every message carries its schema, or none does."""
    text = str(schemas).lower()
    return {f"{part}.converter": _JSON for part in _BOTH} | {
        f"{part}.converter.schemas.enable": text for part in _BOTH
    }


def avro_events(registry: str) -> dict[str, str]:
    """Avro in Confluent's frames, with schemas in a registry; takes the address of `Services`."""
    native = registry.replace("/apis/ccompat/v7", "/apis/registry/v2")
    settings = {"schema.name.adjustment.mode": "avro"}
    for part in _BOTH:
        prefix = f"{part}.converter.apicurio.registry"
        settings |= {
            f"{part}.converter": _AVRO,
            f"{prefix}.url": native,
            f"{prefix}.auto-register": "true",
            f"{prefix}.headers.enabled": "false",
            f"{prefix}.as-confluent": "true",
            # the id that the registry's Confluent door knows
            f"{prefix}.use-id": "contentId",
        }
    return settings


def flattened(*fields: str, deletes: str = "rewrite") -> dict[str, str]:
    """The row alone, without its envelope; `fields` of that are kept with `__` before them."""
    return {
        "transforms": "flat",
        "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.flat.delete.tombstone.handling.mode": deletes,
        **({"transforms.flat.add.fields": ",".join(fields)} if fields else {}),
    }


def following(postgres: Postgres, name: str, schemas: str) -> dict[str, str]:
    """A connector that writes what happens in some schemas to topics `name.schema.table`."""
    slot = "".join(c if c.isalnum() else "_" for c in name.lower())
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(postgres.port),
        "database.user": USER,
        "database.password": postgres.password,
        "database.dbname": DATABASE,
        "schema.include.list": schemas,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "slot.drop.on.stop": "true",
        "publication.name": slot,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        # truncates are left out otherwise
        "skipped.operations": "none",
        # half a second is a long time for a test
        "poll.interval.ms": "50",
        "status.update.interval.ms": "500",
    }


def following_mariadb(mariadb: MariaDB, name: str, databases: str) -> dict[str, str]:
    """Build the settings of a connector that writes topics `name.database.table`."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(mariadb.port),
        "database.user": MARIADB_USER,
        "database.password": mariadb.password,
        # replicas and connectors of one server need different numbers
        "database.server.id": str(10_000 + zlib.crc32(name.encode()) % 1_000_000),
        "database.include.list": databases,
        "topic.prefix": name,
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(_HISTORY / f"{name}.jsonl"),
        "schema.history.internal.store.only.captured.tables.ddl": "true",
        "include.schema.changes": "false",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        "skipped.operations": "none",
        "poll.interval.ms": "50",
    }


# Kafka Connect and Debezium as files: fetched once, checked against the lock in `jvm_connect/`.

LOCK = Lock(
    Path(__file__).with_name("jvm_connect"), what="Kafka Connect and Debezium", size="about 45 MB"
)
"""Every file that the broker does not have as well, with its exact version."""


@dataclass(frozen=True, slots=True)
class ConnectArtifacts:
    """What a JVM needs beside the broker's files to be a worker with the connector."""

    jars: tuple[Path, ...]
    """The rest of the class path."""
    plugins: tuple[Path, ...]
    """The folders that hold a connector each."""


def ensure_connect(
    progress: Progress | None = None, *, cache: Path | None = None
) -> ConnectArtifacts:
    """The files in the user's cache, fetched if this user never had them; else SetupError."""
    root = cache or platformdirs.user_cache_path("distributary")
    paths = ensure(LOCK, root / "dev" / LOCK.key, progress)
    plugins = tuple(path for path in paths if path.is_dir())
    return ConnectArtifacts(tuple(path for path in paths if path not in plugins), plugins)


def main() -> int:
    """Fetch now, for the Makefile and for machines that will have no network."""
    return fetch_now(
        ensure_connect, lambda found: f"Kafka Connect and Debezium in {found.plugins[0].parent}"
    )


_MEMORY = "512m"
_ANSWER_SECONDS = 5.0
_REQUEST_SECONDS = 60.0
_CONNECTOR_SECONDS = 600
_POLL_SECONDS = 0.1
_SETTINGS = Path("connect", "worker.properties")
_PLUGINS = Path("connect", "plugins")
_POSITIONS = Path("connect", "offsets")
_HISTORY = Path("connect", "history")

_FIXED = {
    "plugin.path": str(_PLUGINS),
    # what is needed is listed in its jar: nothing has to be searched for
    "plugin.discovery": "service_load",
    "offset.storage.file.filename": str(_POSITIONS),
    "offset.flush.interval.ms": "500",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}


@dataclass(frozen=True, slots=True)
class _Connector:
    settings: dict[str, str]
    server: Postgres | MariaDB

    def streams(self) -> bool:
        """Return whether it has read its snapshot, and follows the log of its server."""
        if isinstance(self.server, MariaDB):
            return self.server.is_followed()
        # only then it holds its slot
        slot = self.settings["slot.name"]
        query = f"select 1 from pg_replication_slots where active and slot_name = '{slot}'"
        return bool(self.server.rows(query))

    def left(self) -> None:
        """Have the server forget the connection of a connector that has been stopped."""
        # the server may be down
        with suppress(SetupError):
            if isinstance(self.server, MariaDB):
                self.server.end_followers()


class Debezium(Single):
    """One worker; connectors are added and removed while it runs.

    A worker that is killed forgets its connectors, and has them again after `restart`: what they
    had already sent since the last half second is sent again then, as Debezium promises no better.
    """

    name = "connect"
    title = "Kafka Connect"

    def __init__(self, folder: Path, *, kafka: str, port: int | None = None) -> None:
        super().__init__(folder, port=port)
        self._kafka = kafka
        self._connectors: dict[str, _Connector] = {}

    @property
    def address(self) -> str:
        """Of the worker's own interface."""
        return f"http://{HOST}:{self.port}"

    def follow(
        self,
        server: Postgres | MariaDB,
        name: str,
        *,
        schemas: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Write every change in some schemas to topics `name.schema.table`, a snapshot first.

        Returns when the snapshot is over: what is changed from then on is an event of its own. A
        connector of this name that was removed goes on where it ended, also at another server.
        """
        if isinstance(server, MariaDB):
            wanted = following_mariadb(server, name, schemas)
        else:
            wanted = following(server, name, schemas)
        self._connectors[name] = _Connector(wanted | dict(settings or {}), server)
        self._add(name)

    def forget(self, name: str) -> None:
        """Remove a connector; its slot goes with it."""
        connector = self._connectors.pop(name, None)
        self._ask("DELETE", f"/connectors/{quote(name)}")
        if connector is not None:
            connector.left()

    def forget_all(self) -> None:
        """Remove every connector."""
        for name in [*self._connectors]:
            self.forget(name)

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Return how far a connector has come, as the worker has written it down."""
        _, answer = self._ask("GET", f"/connectors/{quote(name)}/offsets")
        found: list[dict[str, Any]] = answer.get("offsets", [])
        return found

    def set_offsets(self, name: str, offsets: Sequence[Mapping[str, Any]] | None) -> None:
        """Have a connector that is stopped go on elsewhere; None: begin with a snapshot."""
        self._ask("PUT", f"/connectors/{quote(name)}/stop")
        deadline = time.monotonic() + _CONNECTOR_SECONDS
        while True:
            body = None if offsets is None else {"offsets": list(offsets)}
            verb = "DELETE" if offsets is None else "PATCH"
            status, answer = self._ask(verb, f"/connectors/{quote(name)}/offsets", body)
            if status < HTTPStatus.BAD_REQUEST:
                self._connectors[name].left()
                return
            if time.monotonic() > deadline:
                raise self._failed(name, str(answer.get("message", status)))
            time.sleep(_POLL_SECONDS)

    def resume(self, name: str) -> None:
        """Start a connector again that was stopped, and wait until it follows its server."""
        self._ask("PUT", f"/connectors/{quote(name)}/resume")
        self._wait_until_streaming(name)

    def follows(self, name: str) -> bool:
        """Whether it is written down that the snapshot of a connector is over.

        Before that, a worker that begins again begins with a snapshot, and nobody tells what was
        deleted before it.
        """
        positions = [each.get("offset") or {} for each in self.offsets(name)]
        return bool(positions) and not any("snapshot" in each for each in positions)

    def kill(self) -> None:
        """End it as a crash would; how far its connectors came stays known.

        A worker writes that down in place, twice a second. One that is killed while it writes would
        begin with a snapshot again, and nobody would tell what was deleted before that.
        """
        whole = self._positions()
        super().kill()
        if whole:
            (self.folder / _POSITIONS).write_bytes(whole)

    def _positions(self) -> bytes:
        """The file in which positions are kept, as it is when nobody writes it."""
        before, now = None, b""
        while before != now:
            before = now
            time.sleep(_POLL_SECONDS / 2)
            with suppress(OSError):
                now = (self.folder / _POSITIONS).read_bytes()
        return now

    def restart(self) -> None:
        """The worker again, with its connectors; killed first if it runs."""
        super().restart()
        for name in self._connectors:
            self._add(name)

    def answers(self) -> bool:
        """Whether it lists its connectors."""
        try:
            status, _ = self._ask("GET", "/connectors", patience=_ANSWER_SECONDS)
        except OSError:
            return False
        return status == HTTPStatus.OK

    def _add(self, name: str) -> None:
        path, connector = f"/connectors/{quote(name)}", self._connectors[name]
        status, answer = self._ask("PUT", f"{path}/config", connector.settings)
        if status >= HTTPStatus.BAD_REQUEST:
            raise self._failed(name, str(answer.get("message", status)))
        self._wait_until_streaming(name)

    def _wait_until_streaming(self, name: str) -> None:
        path, connector = f"/connectors/{quote(name)}", self._connectors[name]
        deadline = time.monotonic() + _CONNECTOR_SECONDS
        while not connector.streams():
            _, answer = self._ask("GET", f"{path}/status")
            states = [answer.get("connector", {}), *answer.get("tasks", ())]
            failed = [each for each in states if each.get("state") == "FAILED"]
            if failed or time.monotonic() > deadline:
                raise self._failed(name, str((failed or states)[0].get("trace", ""))[:2000])
            time.sleep(_POLL_SECONDS)

    def _ask(
        self, verb: str, path: str, body: object = None, *, patience: float = _REQUEST_SECONDS
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=patience)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(verb, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(type(error).__name__) from error
        finally:
            connection.close()
        try:
            known = json.loads(answer)
        except ValueError:
            known = None
        return response.status, known if isinstance(known, dict) else {}

    def _failed(self, name: str, evidence: str) -> SetupError:
        return SetupError(
            f"the connector {name} does not run",
            code=ErrorCode.SERVICE_FAILED,
            where=f"{self.address}/connectors/{quote(name)}",
            evidence=evidence,
            next_step=f"correct its settings; {self.log} says more",
        )

    def _launch(self, say: Progress) -> Running:
        java, artifacts, connect = require_java(), ensure_artifacts(say), ensure_connect(say)
        fresh(self.folder / "tmp" / self.name)
        self._prepare(connect.plugins)
        jars = (*artifacts.kafka, *connect.jars)
        flags = small_jvm(
            java,
            jars,
            memory=_MEMORY,
            service=self.name,
            port=self.port,
            folder=self.folder,
        )
        return launch(
            [
                *flags,
                f"-Dlog4j2.configurationFile={JVM / 'log4j2.properties'}",
                f"-Ddistributary.log={self.log.relative_to(self.folder)}",
                "-Ddistributary.log.level=INFO",
                *("-cp", os.pathsep.join(map(str, jars))),
                *("org.apache.kafka.connect.cli.ConnectStandalone", str(_SETTINGS)),
            ],
            service=self.name,
            port=self.port,
            folder=self.folder,
            output=self.log.with_suffix(".out"),
        )

    def _prepare(self, plugins: Sequence[Path]) -> None:
        path = self.folder / _SETTINGS
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = _FIXED | {"bootstrap.servers": self._kafka, "listeners": self.address}
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        (self.folder / _HISTORY).mkdir(exist_ok=True)
        links = self.folder / _PLUGINS
        fresh(links)
        for plugin in plugins:
            (connector,) = plugin.iterdir()
            # a comma in the path of the cache would make two folders of it
            (links / connector.name).symlink_to(connector)

    def _discard(self) -> None:
        shutil.rmtree(self.folder / "connect", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
