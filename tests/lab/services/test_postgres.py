"""PostgreSQL as it is installed, with data for one test; and what happens where it is not."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distributary.errors import ErrorCode, SetupError
from distributary_lab.services.processes import HOST, lent, running
from tests.services import postgres
from tests.services.postgres import Postgres, lend, other_user, program, take_back
from tests.waiting import eventually

# starts a server as tests do, and goes on for ever
OWNER = """
import sys, time
from pathlib import Path
from tests.services.postgres import Postgres
with Postgres(Path(sys.argv[1])) as started:
    print(started.folder.joinpath("lent").resolve(), flush=True)
    time.sleep(300)
"""


def segment(folder: Path) -> str:
    """The number of the shared memory that a running server has."""
    lines = (lent(folder) / "data" / "postmaster.pid").read_text().splitlines()
    return lines[6].split()[1]


def segments() -> set[str]:
    """The shared memory of this system, if that can be told."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[1] for line in lines}


@pytest.mark.services
def test_a_server_from_its_start_to_its_end(folder: Path) -> None:
    server = Postgres(folder)
    assert server.start()
    assert not server.start()
    data = lent(folder).resolve()
    assert server.rows("select 1 as a, 'ä' as b, null as c") == [{"a": 1, "b": "ä", "c": None}]
    assert server.rows("select 1 where false") == []
    assert server.execute("show wal_level").strip() == "logical"
    with pytest.raises(SetupError) as caught:
        server.execute("select * from nowhere")
    assert caught.value.code is ErrorCode.SERVICE_FAILED
    assert "nowhere" in caught.value.evidence

    # root must not run it, and everybody else runs it himself
    process = running(folder)["postgres"].processes[0]
    assert process.uids().real == (other_user() or (os.getuid(),))[0] != 0
    server.execute("create table kept (n int); insert into kept values (7)")
    children = process.children(recursive=True)
    server.kill()
    assert not any(each.is_running() for each in (process, *children))
    server.restart()
    assert server.rows("select n from kept") == [{"n": 7}]

    memory = segment(folder)
    assert server.stop()
    assert not server.stop()
    assert running(folder) == {}
    assert not data.exists()
    assert not lent(folder).exists()
    assert memory not in segments()


@pytest.mark.services
def test_a_server_that_was_killed_leaves_nothing_when_it_is_stopped(folder: Path) -> None:
    server = Postgres(folder)
    server.start()
    data, memory = lent(folder).resolve(), segment(folder)
    server.kill()
    assert data.exists()
    server.stop()
    assert not data.exists()
    assert memory not in segments()


@pytest.mark.services
def test_nobody_gets_in_without_the_password(folder: Path) -> None:
    with Postgres(folder) as server:
        stranger = Postgres(folder, port=server.port)
        with pytest.raises(SetupError) as caught:
            stranger.execute("select 1")
        assert "password" in caught.value.evidence
        assert server.password not in str(caught.value)
        assert server.password not in " ".join(
            word for each in running(folder).values() for word in each.processes[0].cmdline()
        )


@pytest.mark.services
def test_a_server_ends_with_the_process_that_wanted_it(folder: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        data = Path(owner.stdout.readline().strip())
        assert data.is_dir()
        (server,) = running(folder).values()
        owner.send_signal(signal.SIGKILL)
    psutil.wait_procs(server.processes, timeout=60)
    eventually(lambda: not data.exists(), seconds=60)
    assert running(folder) == {}


def test_a_port_that_is_taken(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as stranger, pytest.raises(SetupError) as caught:
        Postgres(folder, port=stranger.getsockname()[1]).start()
    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert not lent(folder).exists()


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "INSTALLED", tmp_path)
    with pytest.raises(SetupError) as caught:
        program("postgres")
    assert caught.value.code is ErrorCode.SERVICE_FAILED
    assert "apt-get install postgresql" in caught.value.next_step


def test_the_newest_that_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "INSTALLED", tmp_path)
    for version in ("9.6", "15", "100"):
        place = tmp_path / version / "bin"
        place.mkdir(parents=True)
        (place / "initdb").touch(mode=0o755)
    (tmp_path / "100" / "bin" / "initdb").chmod(0o600)
    assert program("initdb") == str(tmp_path / "15" / "bin" / "initdb")


def test_only_root_needs_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.os, "geteuid", lambda: 1000)
    assert other_user() is None
    monkeypatch.setattr(postgres.os, "geteuid", lambda: 0)
    assert other_user() is not None
    monkeypatch.setattr(postgres, "_USERS", ("no-such-user",))
    with pytest.raises(SetupError) as caught:
        other_user()
    assert caught.value.code is ErrorCode.SERVICE_FAILED


def test_what_is_lent_is_taken_back(tmp_path: Path) -> None:
    place = lend(tmp_path)
    (place / "data").mkdir()
    assert lend(tmp_path) == place
    assert place.stat().st_mode & 0o077 == 0
    take_back(tmp_path)
    take_back(tmp_path)
    assert not place.exists()
    assert list(tmp_path.iterdir()) == []
    # of what is no link of ours nothing is removed
    lent(tmp_path).mkdir()
    take_back(tmp_path)
    assert lent(tmp_path).is_dir()


def test_a_folder_that_somebody_put_in_place_of_ours_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = lend(tmp_path)
    try:
        place.chmod(0o777)
        other = lend(tmp_path)
        assert other != place
        monkeypatch.setattr(postgres, "other_user", lambda: (os.geteuid() + 1, os.getegid()))
        monkeypatch.setattr(postgres.os, "chown", lambda *_: None)
        assert lend(tmp_path) != other
        shutil.rmtree(other, ignore_errors=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        take_back(tmp_path)


def test_the_password_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    place = tmp_path / "place"
    place.mkdir()
    (place / "password").symlink_to(precious)
    seen: list[tuple[str, int]] = []

    def initdb(command: list[str], *_: object, **__: object) -> None:
        words = place / "password"
        seen.append((words.read_text(), words.lstat().st_mode & 0o777))

    monkeypatch.setattr(postgres, "program", lambda name: name)
    monkeypatch.setattr(postgres, "run_as", initdb)
    server = Postgres(tmp_path / "server")
    server._make(place / "data")
    assert seen == [(server.password, 0o600)]
    assert precious.read_text() == "precious"
    assert not (place / "password").exists()
