"""What every store promises: a folder and a bucket, by the same tests."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.errors import OutsideLakeError
from distributary.store import base
from distributary.store.base import REQUESTS, Store, at, introduce
from distributary.store.bucket import Bucket
from distributary.store.disk import Disk
from tests.services.stores import SERVERS, StoreServer
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], StoreServer]]:
    """Servers that are no Python, each started when it is asked for."""
    with ExitStack() as stack:

        @cache
        def started(name: str) -> StoreServer:
            return stack.enter_context(SERVERS[name](tmp_path_factory.mktemp(name)))

        yield started


@pytest.fixture(
    params=["disk", "bucket", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "disk":
        return at(f"{tmp_path}/some folder")
    monkeypatch.setattr(base, "_OPTIONS", {})
    if request.param != "bucket":
        real = request.getfixturevalue("servers")(request.param)
        introduce(real.address, real.options)
        return at(f"{real.address}/{uuid.uuid4().hex}/some folder")
    server: S3Server = request.getfixturevalue("server")
    introduce(f"s3://{BUCKET}", server.options)
    return at(f"s3://{BUCKET}/{uuid.uuid4().hex}/some folder")


def test_what_is_not_there(store: Store) -> None:
    assert store.look("a/b") is None
    assert store.size("a") is None
    assert not store.exists()
    assert store.files() == store.files("a", recursive=True) == []
    assert store.folders() == []
    store.remove("a/b")
    store.remove_folder("a")
    assert store.swap("a", b"x", unchanged="1") is None
    for read in (store.read, store.open, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("a/b")


def test_a_name_is_given_once(store: Store) -> None:
    first = store.create("claims/1 é.json", b"mine")
    assert first is not None
    assert store.create("claims/1 é.json", b"yours") is None
    assert store.read("claims/1 é.json") == b"mine"
    found = store.look("claims/1 é.json")
    assert found is not None
    assert (found.name, found.size, found.version) == ("claims/1 é.json", 4, first)


def test_of_many_at_once_exactly_one_creates_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(5):
            tries = [pool.submit(store.create, f"n{number}", b"%d" % n) for n in range(8)]
            won = [n for n, one in enumerate(tries) if one.result() is not None]
            assert len(won) == 1
            assert store.read(f"n{number}") == b"%d" % won[0]


def test_what_was_read_is_replaced_and_nothing_newer(store: Store) -> None:
    first = store.write("claim", b"1")
    second = store.swap("claim", b"2", unchanged=first)
    assert second not in (None, first)
    assert store.swap("claim", b"3", unchanged=first) is None
    assert store.read("claim") == b"2"
    store.remove("claim")
    assert store.swap("claim", b"4", unchanged=str(second)) is None
    assert store.look("claim") is None


def test_of_many_swaps_of_one_version_one_is_done(store: Store) -> None:
    version = store.write("claim", b"before")
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(store.swap, "claim", b"%d" % n, unchanged=version) for n in range(8)]
        won = [n for n, one in enumerate(tries) if one.result() is not None]
    assert len(won) == 1
    assert store.read("claim") == b"%d" % won[0]


def test_lists_and_removes(store: Store) -> None:
    for name in ("a", "x/b", "x/y/c", "z/d"):
        store.write(name, name.encode())
    assert [f.name for f in store.files()] == ["a"]
    assert [f.name for f in store.files("x")] == ["x/b"]
    assert sorted(f.name for f in store.files(recursive=True)) == ["a", "x/b", "x/y/c", "z/d"]
    assert sorted(f.name for f in store.files("x", recursive=True)) == ["x/b", "x/y/c"]
    assert store.folders() == ["x", "z"]
    assert store.folders("x") == ["y"]
    assert store.exists("x/y") and not store.exists("q")
    assert store.below("x").read("y/c") == b"x/y/c"
    store.remove("a")
    store.remove_folder("x")
    assert [f.name for f in store.files(recursive=True)] == ["z/d"]
    store.remove_folder()
    assert store.files(recursive=True) == []


def test_a_name_that_begins_like_a_folder_is_another(store: Store) -> None:
    store.write("x/b", b"1")
    store.write("xy/b", b"2")
    assert [f.name for f in store.files("x", recursive=True)] == ["x/b"]
    store.remove_folder("x")
    assert store.read("xy/b") == b"2"


def test_parts_of_a_file(store: Store) -> None:
    store.write("f", b"0123456789")
    assert store.read_range("f", 2, 3) == b"234"
    assert store.read_range("f", 8, 100) == b"89"
    sink = pa.BufferOutputStream()
    table = pa.table({"n": range(1000), "t": ["x" * 1000] * 1000})
    pq.write_table(table, sink, row_group_size=100, compression="none", use_dictionary=False)
    store.write("t.parquet", sink.getvalue().to_pybytes())
    with store.open("t.parquet") as file:
        assert pq.ParquetFile(file).read_row_group(7).equals(table.slice(700, 100))


def test_copies_go_anywhere(store: Store, tmp_path: Path) -> None:
    store.write("t/f", b"content")
    for to in (store.below("elsewhere"), at(f"{tmp_path}/other")):
        store.copy("t/f", to=to)
        assert to.read("t/f") == b"content"
        with pytest.raises(FileNotFoundError):
            store.copy("t/none", to=to)
    back = at(f"{tmp_path}/other")
    back.copy("t/f", to=store.below("back"))
    assert store.read("back/t/f") == b"content"


def test_a_link_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="link"):
        at(f"{tmp_path}/in").copy("f", to=at(f"{tmp_path}/out"))


@pytest.mark.parametrize("folder", ["_distributary", "_checkpoints"])
def test_own_folders_of_a_lake_have_no_links(tmp_path: Path, folder: str) -> None:
    (tmp_path / "lake" / folder).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"x")
    (tmp_path / "lake" / folder / "way").symlink_to(tmp_path / "outside")
    (tmp_path / "lake" / folder / "copy").write_bytes(b"y")
    store = Disk(str(tmp_path / "lake" / folder))
    calls: list[Callable[[], object]] = [
        lambda: store.create("way/new", b""),
        lambda: store.write("way/file", b""),
        lambda: store.swap("way/file", b"", unchanged="1"),
        lambda: store.read("way/file"),
        lambda: store.read_range("way/file", 0, 1),
        lambda: store.look("way/file"),
        lambda: store.files("way"),
        lambda: store.folders("way"),
        lambda: store.exists("way"),
        lambda: store.remove("way/file"),
        lambda: store.remove_folder("way"),
        lambda: store.copy("way/file", to=store, named="copy"),
        lambda: store.copy("copy", to=store.below("way")),
        lambda: store.open("way/file"),
        lambda: store.below("way").read("file"),
    ]
    for call in calls:
        with pytest.raises(OutsideLakeError):
            call()
    assert (tmp_path / "outside" / "file").read_bytes() == b"x"
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "file")
    else:
        (tmp_path / "file").symlink_to("/dev/zero")
    store = Disk(str(tmp_path))
    for read in (store.read, store.open, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(OutsideLakeError):
            read("file")


def test_a_file_without_end_is_not_read_at_once(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError) as raised:
        Disk(str(tmp_path)).read("file")
    assert raised.value.errno == errno.EFBIG


def test_drafts_are_no_files_and_none_is_left(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    disk.create("a", b"1")
    disk.write("a", b"2")
    (tmp_path / ".b.0123.draft").write_bytes(b"half")
    assert [f.name for f in disk.files()] == ["a"]
    assert sorted(os.listdir(tmp_path)) == [".b.0123.draft", "a"]


def test_a_file_costs_one_request_and_errors_hold_no_secret(server: S3Server) -> None:
    store = Bucket(f"s3://{BUCKET}/lake", server.options)
    REQUESTS.clear()
    store.write("f", b"x" * 20_000_000)
    store.create("g", b"1")
    assert REQUESTS == {"write": 1, "create": 1}
    wrong = server.options | {"aws_endpoint_url": "http://127.0.0.1:1/canary-secret"}
    silent = Bucket(f"s3://{BUCKET}/lake", {name.lower(): v for name, v in wrong.items()})
    with pytest.raises(OSError, match="error") as told:
        silent.look("f")
    assert "canary" not in str(told.value)


def test_the_end_of_a_long_folder_is_listed(store: Store) -> None:
    for number in (8, 9, 10):
        store.write(f"log/{number:03d}.json", b"%d" % number)
    store.write("log/010/deeper", b"x")
    assert sorted(f.name for f in store.files("log", after="008.json")) == [
        "log/009.json",
        "log/010.json",
    ]
    assert len(store.files("log", after="008")) == 3
    assert store.files("log", after="011") == []
    (newest,) = store.files("log", after="009.json")
    # all ways to look at a file agree on which version of it is there
    assert store.fetch("log/010.json") == (b"10", newest.version)
    assert store.look("log/010.json") == newest


def test_google_is_asked_by_the_number_of_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    # no emulator of it takes what the library sends; the library wants the number, not the hash
    key = {"gcs_base_url": "http://127.0.0.1:1", "disable_oauth": True, "client_email": ""}
    text = json.dumps({**key, "private_key": "", "private_key_id": ""})
    store = Bucket("gs://bucket/lake", {"google_service_account_key": text, "allow_http": "true"})
    asked: list[Any] = []

    def put(*_: Any, mode: Any, **__: Any) -> dict[str, str]:
        asked.append(mode)
        return {"e_tag": "hash", "version": f"{len(asked)}"}

    monkeypatch.setattr("obstore.put", put)
    version = store.write("f", b"1")
    assert store.swap("f", b"2", unchanged=version) == "2"
    assert asked == ["overwrite", {"version": "1"}]


def test_a_folder_is_no_file(store: Store) -> None:
    store.write("a/b/c", b"1")
    assert store.look("a/b") is None
    assert store.size("a/b") is None
    with pytest.raises(FileNotFoundError):
        store.fetch("a/b")
