"""The same pipeline on a Spark standalone cluster: two workers on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import RUN
from tests.lakes.games import Games
from tests.services.spark_cluster import (
    DRIVER_CONF,
    DRIVER_ENVIRONMENT,
    EXECUTORS,
    spark_cluster,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SECRET = "shared-4711-CANARY"
# the file holds the secret, because arguments would be on the command line that is looked at
COUNT = """
import json, sys
from pathlib import Path
import psutil
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings

given = json.loads(Path(sys.argv[1]).read_text())
settings = SparkSettings(**given, log_file=Path(sys.argv[2]), short_lived=True)
spark = spark_session(settings)
print(spark.range(100, numPartitions=4).rdd.map(lambda row: row.id).sum())
commands = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
print(sum(given["conf"]["spark.authenticate.secret"] in " ".join(c) for c in commands))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with spark_cluster(tmp_path / "work") as address:
        yield address


def test_a_cluster_is_only_another_master(tmp_path: Path, master: str) -> None:
    games = Games(tmp_path, GamesPlan(games=4, versions=2, records=20, bad=6), records_per_file=20)
    games.send_all()
    games.write_file(
        extra=f"""
spark:
  master: {master}
  driver_memory: 1g
  conf: {json.dumps({**DRIVER_CONF, **EXECUTORS})}
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(games.root / "games.yaml")],
        env={**os.environ, **DRIVER_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "read 166 = written 160 + dead letters 6 + parked 0" in done.stdout
    games.assert_each_record_once()


def test_a_cluster_with_a_secret_takes_it_from_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        f"spark.authenticate true\nspark.authenticate.secret {SECRET}\n"
        # with its REST server a master that has a secret does not start
        "spark.master.rest.enabled false\n"
    )
    # the daemons' own settings, which the driver does not have
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    with spark_cluster(tmp_path / "work", workers=1) as address:
        monkeypatch.delenv("SPARK_CONF_DIR")
        conf = {**DRIVER_CONF, **EXECUTORS, "spark.authenticate.secret": SECRET}
        (tmp_path / "settings").write_text(json.dumps({"master": address, "conf": conf}))
        done = subprocess.run(
            [sys.executable, "-c", COUNT, str(tmp_path / "settings"), str(tmp_path / "spark.log")],
            env={**os.environ, **DRIVER_ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.stdout.split() == ["4950", "0"], done.stderr
    assert SECRET not in (tmp_path / "spark.log").read_text()
