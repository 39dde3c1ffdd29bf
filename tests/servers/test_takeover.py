"""Servers that take over while runs are killed: every row of the lake is that of the database."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from distributary_lab.services.services import Services
from tests.servers.scenarios import KINDS, Play, Size
from tests.services import mariadb
from tests.services.debezium import Debezium


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.spark
# six minutes each: the kind with fewer ways to take over is left to `make test-cluster`
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.cluster if kind == "postgres" else ()) for kind in KINDS],
)
def test_the_lake_is_the_database_whichever_server_has_it(
    kind: str, services: Services, debezium: Debezium, tmp_path: Path
) -> None:
    if kind == "mariadb" and not mariadb.is_installed():
        pytest.skip("mariadb-server is not installed")
    with ExitStack() as stack:
        play = Play(kind, services, debezium, tmp_path, stack, Size())
        for report in play.play():
            assert not report.differences, (report.step, report.differences[:3])
            # no operator had to say what the source was
            assert not report.answers, report.step
