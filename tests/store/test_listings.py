"""A listing that a store never ends is an error; any other costs a request a page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from distributary.delta.tables import open_table, reaching_table
from distributary.errors import ErrorCode, LakeUnavailableError
from distributary.publish.parquet_publisher import ParquetTable, TableRecord
from distributary.store import bucket as module
from distributary.store.base import introduce, reaching
from distributary.store.bucket import Bucket
from tests.registry.loopback import Asked, Says, Script, Server, serving
from tests.waiting import eventually

KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "canary-secret"}
ALLOWED = {**KEYS, "aws_allow_http": "true"}
LISTINGS: dict[str, Callable[[Bucket], object]] = {
    "files": lambda store: store.files(),
    "folders": lambda store: store.folders(),
    "recursive": lambda store: store.files(recursive=True),
    "after": lambda store: store.files(after="a"),
}


def page(names: list[str], *, token: str = "") -> Says:
    """Answer a listing as S3 does; with a token there is more."""
    files = "".join(
        f"<Contents><Key>lake/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        '<ETag>"x"</ETag><Size>1</Size></Contents>'
        for name in names
        if not name.endswith("/")
    )
    folders = "".join(
        f"<CommonPrefixes><Prefix>lake/{name}</Prefix></CommonPrefixes>"
        for name in names
        if name.endswith("/")
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = str(bool(token)).lower()
    body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{files}{folders}"
    return Says(body=f"{body}</ListBucketResult>".encode(), headers={"content-type": "text/xml"})


def store_of(server: Server) -> Bucket:
    return Bucket("s3://bucket/lake", {**KEYS, "aws_endpoint_url": server.url})


def pages(*each: list[str]) -> Script:
    """Answer with these pages, in order, as often as they are asked for."""

    def script(asked: Asked) -> Says:
        number = int(asked.query.get("continuation-token", "0"))
        last = number + 1 == len(each)
        return page(each[number], token="" if last else str(number + 1))

    return script


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a listing suspected from its beginning on."""
    monkeypatch.setattr(module, "_LONG_LISTING", 0.0)
    yield


@pytest.mark.usefixtures("suspicious")
@pytest.mark.parametrize("kind", LISTINGS)
def test_a_store_that_repeats_its_page_is_an_error(kind: str) -> None:
    with serving(lambda asked: page(["one", "two", "in/"], token="again"), paged=True) as server:
        store = store_of(server)
        with pytest.raises(LakeUnavailableError) as error, reaching(store.address):
            LISTINGS[kind](store)
        assert error.value.code is ErrorCode.LAKE_UNAVAILABLE
        assert "it repeats the page that begins with lake/" in error.value.evidence
        assert store.address in error.value.where
        # one that is still asked would never be left alone
        eventually(lambda: not asked_again(server), seconds=60)


@pytest.mark.usefixtures("suspicious")
@pytest.mark.parametrize("names", [["a"], []], ids=["repeats its page", "gives no file"])
def test_a_table_whose_log_is_listed_without_an_end_is_an_error(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing is deltalake's own, which follows it for ever."""
    monkeypatch.setattr(module, "_LEFT_ASKING", set())
    monkeypatch.setattr(module, "_LONGEST_LISTING", 0.3)
    found = [f"table/_delta_log/{number:020}.json" for number, _ in enumerate(names)]

    def script(asked: Asked) -> Says:
        return page(found, token="again") if "list-type" in asked.query else Says(404, b"")

    with serving(script, paged=True) as server:
        introduce("s3://bucket/lake", ALLOWED | {"aws_endpoint_url": server.url})
        table, before = store_of(server).below("table"), library_threads()
        for _ in range(2):
            with pytest.raises(LakeUnavailableError) as error:
                open_table(table.address)
            assert error.value.code is ErrorCode.LAKE_UNAVAILABLE
            assert table.address in error.value.where
            assert "listing" in error.value.evidence
        # one that a library still lists is looked at first: no second one is left behind
        assert library_threads() - before == 1


@pytest.mark.usefixtures("suspicious")
def test_a_plain_table_whose_files_are_listed_without_an_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its listing is pyarrow's own, over deltalake's, which follows it for ever."""
    monkeypatch.setattr(module, "_LEFT_ASKING", set())
    monkeypatch.setattr(module, "_LONGEST_LISTING", 0.3)
    with serving(lambda asked: page(["table/a.parquet"], token="again"), paged=True) as server:
        introduce("s3://bucket/lake", ALLOWED | {"aws_endpoint_url": server.url})
        table = ParquetTable(store_of(server).below("table").address)
        with pytest.raises(LakeUnavailableError, match="listing"), reaching_table(table.folder):
            table.dataset(TableRecord("table", "", (), []))


def library_threads() -> int:
    return sum(thread.name == "distributary-library" for thread in threading.enumerate())


def test_a_library_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG_LISTING", 0.0)
    checked = threading.Event()
    monkeypatch.setattr(Bucket, "_check_end", lambda store, key: checked.set())
    with serving(pages(["a"]), paged=True) as server:
        assert store_of(server).listed_by(lambda: checked.wait(60)) is True
        with pytest.raises(KeyError):
            store_of(server).listed_by(lambda: {}["nothing"])


def asked_again(server: Server) -> bool:
    """Return whether a server is asked for anything within a moment."""
    before = len(server.asked)
    server.ended.wait(0.3)
    return len(server.asked) > before


@pytest.mark.usefixtures("suspicious")
@pytest.mark.parametrize("kind", [*LISTINGS, "exists"])
def test_a_store_that_never_gives_a_file_is_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_LISTING", 0.3)
    with serving(lambda asked: page([], token="again"), paged=True) as server:
        store = store_of(server)
        with pytest.raises(OSError, match="s3://bucket/lake has no end"):
            (LISTINGS | {"exists": Bucket.exists})[kind](store)
        eventually(lambda: not asked_again(server), seconds=60)


def test_a_listing_costs_a_request_a_page() -> None:
    with serving(pages(["a", "b"], ["c", "d/"], ["e/"]), paged=True) as server:
        store = store_of(server)
        assert [file.name for file in store.files()] == ["a", "b", "c"]
        assert len(server.asked) == 3
        assert store.folders() == ["d", "e"]
        assert len(server.asked) == 6
        # the first page shows that there are files
        assert store.exists()
        assert len(server.asked) == 7


@pytest.mark.usefixtures("suspicious")
def test_a_long_listing_is_whole_although_it_was_suspected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    look = Bucket._look_for_repeats

    async def looking(store: Bucket, key: str) -> None:
        await look(store, key)
        looked.append(key)
        ready.set()

    ready = threading.Event()

    def script(asked: Asked) -> Says:
        # the listing of the folder ends after the look at what is below
        if "delimiter" in asked.query:
            assert ready.wait(60)
        return pages(["a", "b"], ["c"])(asked)

    monkeypatch.setattr(Bucket, "_look_for_repeats", looking)
    with serving(script, paged=True) as server:
        assert [file.name for file in store_of(server).files()] == ["a", "b", "c"]
    assert looked == ["lake"]


def test_a_loop_of_the_caller_is_no_hindrance() -> None:
    async def ask(store: Bucket) -> list[str]:
        return store.folders()

    with serving(pages(["a", "d/"]), paged=True) as server, ThreadPoolExecutor(1) as thread:
        # the thread of the tests has a loop of its own once a browser has run in it
        asked = thread.submit(lambda: asyncio.run(ask(store_of(server))))
        assert asked.result() == ["d"]


def test_what_a_store_says_against_a_listing_is_an_error_without_secrets() -> None:
    refused = Says(403, b"<Error><Code>AccessDenied</Code><Message>canary-secret</Message></Error>")
    with serving(lambda asked: refused, paged=True) as server:
        for kind in ("files", "folders"):
            with pytest.raises(OSError, match="AccessDenied") as error:
                LISTINGS[kind](store_of(server))
            assert "canary" not in str(error.value)
