"""Iceberg's own code beside pyiceberg: a REST catalog on loopback, and the runtime for Spark."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Thread

import platformdirs
from py4j.java_gateway import GatewayParameters, JavaGateway

from distributary.spark.jars import Lock, Progress, ensure, fetch_now
from distributary.spark.java import require_java
from distributary_lab.services.processes import HOST

LOCK = Lock(
    Path(__file__).with_name("jvm_iceberg"), what="Iceberg's REST catalog", size="about 70 MB"
)
_RUNTIME = "iceberg-spark-runtime"
_OF_SPARK = (
    *("avro-1", "commons-codec", "commons-logging", "hadoop-client", "httpclient-4", "httpcore-4"),
    *("jackson-annotations", "jackson-core-2", "jackson-databind", "log4j", "slf4j-api", "py4j"),
)
"""What the server takes of PySpark's files."""


def ensure_iceberg(progress: Progress | None = None) -> list[Path]:
    """The files in the user's cache, fetched if this user never had them; else SetupError."""
    cache = platformdirs.user_cache_path("distributary") / "dev" / LOCK.key
    return ensure(LOCK, cache, progress)


def spark_runtime() -> Path:
    """The file that teaches a Spark session to read Iceberg tables."""
    (found,) = (path for path in ensure_iceberg() if path.name.startswith(_RUNTIME))
    return found


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """A server of Iceberg's REST protocol, by the project that defines it; its address.

    Its own program listens on all interfaces, so its parts are put together here.
    """
    spark = find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    theirs = Path(spark.origin).parent / "jars"
    jars = [path for path in ensure_iceberg() if not path.name.startswith(_RUNTIME)]
    jars += [path for name in _OF_SPARK for path in sorted(theirs.glob(f"{name}*.jar"))]
    command = [str(require_java().path), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", ":".join(map(str, jars)), "py4j.GatewayServer"]
    command += ["--die-on-broken-pipe", "--enable-auth", "0"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdout is not None
        port, token = int(process.stdout.readline()), process.stdout.readline().strip()
        # what it logs is read, so that it never waits for a reader
        Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        try:
            yield _served(gateway, folder)
        finally:
            gateway.shutdown()
            process.terminate()


def _served(gateway: JavaGateway, folder: Path) -> str:
    """The parts of the server, put together; its address."""
    settings = gateway.jvm.java.util.HashMap()
    for name, value in {
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "warehouse": str(folder / "warehouse"),
        "jdbc.schema-version": "V1",
        "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }.items():
        settings.put(name, value)
    iceberg, jetty = gateway.jvm.org.apache.iceberg, gateway.jvm.org.eclipse.jetty
    catalog = iceberg.jdbc.JdbcCatalog()
    catalog.setConf(gateway.jvm.org.apache.hadoop.conf.Configuration())
    catalog.initialize("tests", settings)
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    handler = jetty.ee10.servlet.ServletContextHandler()
    handler.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(gateway.jvm.java.net.InetSocketAddress(HOST, 0))
    server.setHandler(handler)
    server.start()
    return f"http://{HOST}:{server.getURI().getPort()}"


def main() -> int:
    """Fetch now, for the Makefile and for machines that will have no network."""
    return fetch_now(ensure_iceberg, lambda found: f"{LOCK.what} in {found[0].parent}")


if __name__ == "__main__":
    sys.exit(main())
