from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.spark import session as module
from distributary.spark.jars import ensure_connectors, spark_jars
from distributary.spark.session import new_log_file, options_file, spark_session
from distributary.spark.settings import SparkSettings

# runs in a process of its own, because a process has one JVM; reports through a file, because
# nothing may reach its output
ALONE = """
import json, sys
from pathlib import Path
import psutil
from distributary.errors import SetupError
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings

folder = Path(sys.argv[1])
log = folder / "logs" / "spark.log"
secret = {
    "spark.hadoop.fs.s3a.secret.key": "CANARY",
    "spark.sql.warehouse.dir": str(folder / "w"),
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.eventLog.compress": "false",
    # beside a collector of ours the JVM would not start
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Dmy.password=CANARY",
}
(folder / "events").mkdir()
report = {}
try:
    spark_session(SparkSettings(master="nonsense", conf=secret, log_file=log, short_lived=True))
except SetupError as error:
    report["refused"] = error.as_dict()
spark = spark_session(
    SparkSettings(master="local[2]", conf=secret, log_file=log, short_lived=True), app_name="alone"
)
spark.range(10).write.format("delta").save(str(folder / "table"))
spark._jvm.java.lang.System.out.println("printed by the JVM")
jvm = next(p for p in psutil.Process().children(recursive=True) if "java" in p.name())
report["command"] = jvm.cmdline()
report["secret"] = spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key")
report["option"] = spark._jvm.java.lang.System.getProperty("my.password")
report["name"] = spark.sparkContext.appName
report["logs"] = sorted(p.name for p in log.parent.iterdir())
report["gateway"] = bool(spark.sparkContext._gateway.gateway_parameters.auth_token)
report["listens"] = sorted({c.laddr.ip for c in jvm.net_connections() if c.status == "LISTEN"})
report["python"] = [str(c) for c in psutil.Process().net_connections() if c.status == "LISTEN"]
guard = spark._jvm.org.apache.spark.SparkEnv.get().securityManager()
made = guard.getSecretKey()
report["authenticates"] = [guard.isAuthenticationEnabled(), len(made) >= 32]
spark.stop()
files = [p for p in folder.rglob("*") if p.is_file()]
report["told"] = [str(p) for p in files if made.encode() in p.read_bytes()]
report["told"] += [word for word in report["command"] if made in word]
(folder / "report.json").write_text(json.dumps(report))
"""

SUBMITTED = """
import json, sys
from pathlib import Path
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings

spark = spark_session(SparkSettings(master="local[7]"), app_name="ours")
names = ("spark.master", "spark.app.name", "spark.ui.enabled", "spark.sql.session.timeZone")
names += ("spark.python.unix.domain.socket.enabled",)
answer = {name: spark.conf.get(name) for name in names}
Path(sys.argv[1], "report.json").write_text(json.dumps(answer))
"""


def run(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "report.json").read_text())


def test_session_writes_tables_that_others_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(5).write.format("delta").save(str(tmp_path / "table"))
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 5


def test_session_has_the_connectors(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("avro").save(str(tmp_path / "avro"))
    assert spark.read.format("avro").load(str(tmp_path / "avro")).count() == 3
    kafka = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    )
    assert "offset" in kafka.load().columns


def test_tasks_run_in_this_python_and_see_this_package(spark: SparkSession) -> None:
    def ask(batches: Iterable[Any]) -> Iterable[Any]:
        import pyarrow as pa

        import distributary

        for _ in batches:
            yield pa.record_batch({"x": [sys.executable], "v": [distributary.__version__]})

    rows = spark.range(1).mapInArrow(ask, "x string, v string").collect()
    assert rows[0].x == sys.executable


def test_times_are_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_running_session_is_used_again_and_brought_into_line(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    again = spark_session(SparkSettings(master="local[7]"), app_name="other")
    assert again.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_running_session_is_found_from_another_thread(spark: SparkSession) -> None:
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(spark_session()))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext


def test_secret_options_are_in_a_file_that_nobody_else_reads() -> None:
    with options_file(['-Da.password=x y"\\z', "-Db.password=two\nlines"]) as path:
        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        lines = path.read_text().splitlines()
        assert lines == ['"-Da.password=x y\\"\\\\z"', '"-Db.password=two\\nlines"']
    assert not path.parent.exists()
    with options_file([]) as path:
        assert path is None


@pytest.mark.slow
@pytest.mark.spark
def test_nothing_is_printed_and_no_secret_is_on_a_command_line(tmp_path: Path) -> None:
    done, report = run([sys.executable, "-c", ALONE, str(tmp_path)], tmp_path)
    assert done.stdout == ""
    assert done.stderr == ""
    assert report["refused"]["code"] == "SPARK_FAILED"
    assert report["refused"]["evidence"]
    assert report["refused"]["context"]["log"].endswith("spark.log")
    assert report["name"] == "alone"
    assert (report["secret"], report["option"]) == ("CANARY", "CANARY")
    assert "CANARY" not in " ".join(report["command"])
    assert "-XX:+UseParallelGC" in report["command"]
    assert report["logs"] == ["spark.log", "spark.out"]
    assert "printed by the JVM" in (tmp_path / "logs" / "spark.out").read_text()
    assert not [p for p in tmp_path.rglob("*.log*") if "CANARY" in p.read_text()]
    events = [p.read_text() for p in (tmp_path / "events").rglob("*") if p.is_file()]
    assert events and not [text for text in events if "CANARY" in text]
    assert report["gateway"]
    assert report["authenticates"] == [True, True]
    assert report["told"] == []
    assert report["python"] == []
    assert {ip.removeprefix("::ffff:") for ip in report["listens"]} == {"127.0.0.1"}
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["events", "logs", "report.json", "table"]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit_decides_where_it_was_used(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    submit = str(spark_jars().parent / "bin" / "spark-submit")
    jars = ",".join(str(jar) for jar in ensure_connectors())
    options = ["--master", "local[1]", "--name", "theirs", "--jars", jars]
    options += ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
    _, report = run([submit, *options, str(script), str(tmp_path)], tmp_path)
    assert report == {
        "spark.master": "local[1]",
        "spark.app.name": "theirs",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # its workers are on this machine
        "spark.python.unix.domain.socket.enabled": "true",
    }


def test_every_process_has_a_log_file_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_log_path", lambda *_, **__: tmp_path)
    old, young = tmp_path / "spark-1.log", tmp_path / "spark-2.log"
    for log in (old, young):
        log.write_text("")
    os.utime(old, (0, 0))
    fresh = new_log_file()
    assert fresh.parent == tmp_path
    assert not fresh.exists()
    assert not old.exists()
    assert young.exists()


def test_nobody_else_reads_the_log_of_a_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "launch_gateway", lambda *_: None)
    before, group = os.umask(0o022), module.JvmGroup()
    try:
        module._gateway({}, tmp_path / "logs" / "spark.log", sealed=frozenset(), group=group)
    finally:
        os.umask(before)
        group.kill()
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    assert modes == {"logs": 0o700, "spark.log": 0o600, "spark.out": 0o600}
    # files that the JVM makes itself, when it begins the next one
    assert "filePermissions = rw-------" in (module.JVM / "log4j2.properties").read_text()
