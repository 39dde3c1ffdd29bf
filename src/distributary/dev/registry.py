"""The schema registry: Apicurio, which speaks Confluent's protocol, with its tables in one file."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

from distributary.dev.artifacts import Artifacts
from distributary.dev.java_service import JavaService
from distributary.dev.ports import HOST
from distributary.dev.security import place
from distributary.run.java import Java

_MEMORY = "384m"
_ANSWER_SECONDS = 5.0
_PATH = "/apis/ccompat/v7"

_FIXED = {
    "quarkus.http.host": HOST,
    "quarkus.banner.enabled": "false",
    "quarkus.log.console.enable": "false",
    "quarkus.log.file.enable": "true",
    "quarkus.log.file.json": "false",
    "quarkus.log.file.format": "%d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%e%n",
    "quarkus.log.file.rotation.max-file-size": "10M",
    "quarkus.log.file.rotation.max-backup-index": "2",
    "quarkus.http.access-log.enabled": "false",
    "apicurio.import.work-dir": "tmp/registry",
    "apicurio.storage.snapshot.location": "tmp/registry",
    "apicurio.storage.kind": "sql",
    "apicurio.storage.sql.kind": "h2",
    # the usual delay of half a second would cost a killed registry what it has already promised
    "apicurio.datasource.url": "jdbc:h2:file:./registry/schemas;WRITE_DELAY=0",
    "apicurio.datasource.jdbc.initial-size": "1",
    "apicurio.datasource.jdbc.min-size": "1",
    "apicurio.datasource.jdbc.max-size": "10",
    # as Confluent's registry allows it
    "apicurio.rest.deletion.artifact.enabled": "true",
    "apicurio.rest.deletion.artifact-version.enabled": "true",
    "apicurio.rest.deletion.group.enabled": "true",
    # a list of subjects that silently ends after 1,000 helps nobody
    "apicurio.ccompat.max-subjects": "1000000",
    # it would call an Avro schema with an alias the same as the one without
    "apicurio.ccompat.use-canonical-hash": "false",
}


@dataclass(frozen=True, slots=True)
class Registry(JavaService):
    """Apicurio, with an encrypted port as well if one is given."""

    name = "registry"
    title = "the schema registry"

    @property
    def address(self) -> str:
        """For `registry.url`."""
        return f"http://{HOST}:{self.port}{_PATH}"

    @property
    def port(self) -> int:
        """Without encryption."""
        return self.ports.registry

    @property
    def other_ports(self) -> tuple[int, ...]:
        """The encrypted one."""
        return (self.ports.https,)

    def prepare(self, java: Java, artifacts: Artifacts) -> None:
        """Make the folder of the database."""
        (self.folder / "registry").mkdir(parents=True, exist_ok=True)

    def command(self, java: Java, artifacts: Artifacts) -> list[str]:
        """The jar, with its settings as properties: they win over variables of the environment."""
        settings = _FIXED | {
            "quarkus.http.port": str(self.port),
            "quarkus.log.file.path": str(self.log.relative_to(self.folder)),
        }
        if self.ports.https:
            home = place(self.folder).relative_to(self.folder)
            settings |= {
                "quarkus.http.ssl-port": str(self.ports.https),
                "quarkus.http.insecure-requests": "enabled",
                "quarkus.http.ssl.certificate.files": str(home / "server.pem"),
                "quarkus.http.ssl.certificate.key-files": str(home / "server.key"),
            }
        return [
            *self._jvm(java, [artifacts.registry], memory=_MEMORY),
            *(f"-D{key}={value}" for key, value in settings.items()),
            *("-jar", str(artifacts.registry)),
        ]

    def answers(self) -> bool:
        """Whether it lists its subjects."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
