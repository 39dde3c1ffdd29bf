"""MariaDB and PostgreSQL as they are installed: replicas that take over, dumps put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import ErrorCode, SetupError
from distributary_lab.services.processes import lent, running
from tests.services import mariadb
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres

ROWS = "select json_object('id', id, 'v', v) from shop.t order by id"
needs_mariadb = pytest.mark.skipif(
    not mariadb.is_installed(), reason="mariadb-server is not installed"
)


@needs_mariadb
@pytest.mark.services
@pytest.mark.slow
def test_a_replica_of_mariadb_is_promoted_and_a_dump_put_back(tmp_path: Path) -> None:
    with (
        MariaDB(tmp_path / "a", server_id=1) as first,
        MariaDB(tmp_path / "b", server_id=2, log_name="other") as second,
    ):
        second.follow(first)
        first.execute("create database shop; create table shop.t (id int primary key, v int);")
        first.execute("insert into shop.t values (1, 1), (2, 2)")
        second.caught_up(first)
        second.promote()
        second.execute("insert into shop.t values (3, 3)")
        assert second.rows(ROWS) == [{"id": n, "v": n} for n in (1, 2, 3)]
        assert len(first.rows(ROWS)) == 2
        assert second.execute("select @@gtid_binlog_pos").strip() == "0-2-4"
        assert second.position()[0] == "other.000001"
        with MariaDB(tmp_path / "c", server_id=3) as third:
            third.execute(second.dump("shop"))
            assert third.rows(ROWS) == second.rows(ROWS)
        with pytest.raises(SetupError) as caught:
            second.execute("select * from nowhere")
        assert caught.value.code is ErrorCode.SERVICE_FAILED
        second.restart()
        assert len(second.rows(ROWS)) == 3
        data = lent(second.folder).resolve()
    assert not running(tmp_path / "b")
    assert not data.exists()


@pytest.mark.services
def test_a_standby_of_postgresql_is_promoted_and_a_dump_put_back(tmp_path: Path) -> None:
    with Postgres(tmp_path / "a") as first:
        first.execute("create schema shop; create table shop.t (id int primary key, v int);")
        with first.standby(tmp_path / "b") as second, Postgres(tmp_path / "c") as third:
            first.execute("insert into shop.t values (1, 1), (2, 2)")
            second.caught_up(first)
            second.promote()
            second.execute("insert into shop.t values (3, 3)")
            query = "select id, v from shop.t order by id"
            assert second.rows(query) == [{"id": n, "v": n} for n in (1, 2, 3)]
            assert len(first.rows(query)) == 2
            third.execute(second.dump("shop"))
            assert third.rows(query) == second.rows(query)


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SetupError) as caught:
        mariadb.program("mariadbd")
    assert caught.value.code is ErrorCode.SERVICE_FAILED
    assert not mariadb.is_installed()
