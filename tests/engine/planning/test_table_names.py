"""Table names are taken once, by an exclusive creation in the lake, and never shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.lake import Tables
from distributary.engine.planning.table_book import source_table
from distributary.engine.planning.table_names import (
    Entries,
    NameClash,
    NameEntry,
    Names,
    WantedName,
    clashes,
)
from distributary.errors import ErrorCode
from distributary.model import layout
from distributary.model.names import propose, refused_type_name
from distributary.store.base import at, introduce
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server

TEMPLATE = "silver_{type}"


def wanted(type_name: str, template: str = TEMPLATE) -> WantedName:
    return WantedName(type_name, {"type": type_name}, (propose(template, type=type_name),))


def marked(type_name: str) -> str:
    return next(propose(TEMPLATE, type=type_name).marked())


@dataclass(frozen=True)
class Lake:
    address: str
    options: dict[str, str] = field(default_factory=dict)

    def names(self, *, trial: bool = False, ledger: dict[str, str] | None = None) -> Names:
        return Names(Entries(self.address, trial=trial), ledger=ledger)

    def take(self, *types: str, ledger: dict[str, str] | None = None) -> list[str]:
        """As a process does that has just been started."""
        names = self.names(ledger=ledger)
        return [names.take(wanted(type_name)) for type_name in types]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(params=["disk", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return Lake(str(tmp_path / "lake"))
    server: S3Server = request.getfixturevalue("server")
    address = f"s3://{BUCKET}/{unique('names')}"
    introduce(address, server.options)
    return Lake(address, server.options)


def test_the_first_has_the_plain_name_and_the_second_one_with_digits(lake: Lake) -> None:
    assert lake.take("Chess", "chess") == ["silver_chess", marked("chess")]
    assert lake.take("a.b", "a_b", "a-b") == ["silver_a_b", marked("a_b"), marked("a-b")]
    assert set(clashes(lake.address)) == {
        NameClash("silver_chess", "Chess", "chess", marked("chess")),
        NameClash("silver_a_b", "a.b", "a_b", marked("a_b")),
        NameClash("silver_a_b", "a.b", "a-b", marked("a-b")),
    }


def test_words_that_a_slash_parts_are_a_plain_name(lake: Lake) -> None:
    types = ("video/play", "video.play", "com.example/x", "https://example.com/created")
    plain = ["silver_com_example_x", "silver_https_example_com_created"]
    assert lake.take(*types) == ["silver_video_play", marked("video.play"), *plain]


def test_the_digits_that_a_slash_had_in_the_version_before_stay(lake: Lake) -> None:
    entry = NameEntry({"type": "video/play"}, (marked("video/play"),))
    assert Entries(lake.address).take(marked("video/play"), entry)
    assert lake.take("video/play", "video.play") == [marked("video/play"), "silver_video_play"]


def test_a_dotted_name_of_the_version_before_stays(lake: Lake) -> None:
    former = propose(TEMPLATE, type="a.b").former
    assert former == "silver_a__b"
    Entries(lake.address).take(former, NameEntry({"type": "a.b"}, (former,)))
    assert lake.take("a.b", "a_b", "A.b") == [former, "silver_a_b", marked("A.b")]


def test_many_names_are_written_down_at_once(lake: Lake) -> None:
    names = lake.names()
    names.think()
    types = [f"type {number}" for number in range(40)] + ["Type-1", "type 1"]
    found = [names.take(wanted(type_name)) for type_name in types]
    assert found[1] == found[-1] == "silver_type_1" and found[-2] == marked("Type-1")
    assert not at(layout.names(lake.address)).files()
    assert names.write() == ([], None)
    assert lake.take(*types) == found


def test_whoever_is_overtaken_while_thinking_is_named_again(lake: Lake) -> None:
    names = lake.names()
    names.think()
    assert [names.take(wanted(t)) for t in ("chess", "go")] == ["silver_chess", "silver_go"]
    assert lake.take("Chess") == ["silver_chess"]
    lost, error = names.write()
    assert [entry.tables for entry in lost] == [("silver_chess",)] and error is None
    assert [names.take(wanted(t)) for t in ("chess", "go")] == [marked("chess"), "silver_go"]
    assert lake.take("chess", "go") == [marked("chess"), "silver_go"]


def test_two_that_think_of_the_same_types_in_another_order_come_to_the_same_names(
    lake: Lake,
) -> None:
    first, second = lake.names(), lake.names()
    for names in (first, second):
        names.think()
    assert [first.take(wanted(t)) for t in ("go", "Go")] == ["silver_go", marked("Go")]
    assert [second.take(wanted(t)) for t in ("Go", "go")] == ["silver_go", marked("go")]
    assert first.write() == ([], None)
    lost, error = second.write()
    # also the second of them: that the better name is its own by now was not known before
    assert sorted(entry.spoken for entry in lost) == ["Go", "go"] and error is None
    assert [second.take(wanted(t)) for t in ("Go", "go")] == [marked("Go"), "silver_go"]
    assert lake.take("go", "Go") == ["silver_go", marked("Go")]
    assert len(at(layout.names(lake.address)).files()) == 2


def test_what_could_not_be_written_down_is_nobodys(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    names = lake.names()
    names.think()
    assert names.take(wanted("chess")) == "silver_chess"
    (tmp_path / "lake").write_text("a file where the lake should be")
    lost, error = names.write()
    assert [entry.tables for entry in lost] == [("silver_chess",)]
    assert error is not None and error.code is ErrorCode.LAKE_UNAVAILABLE
    (tmp_path / "lake").unlink()
    assert lake.take("Chess") == ["silver_chess"]
    assert names.take(wanted("chess")) == marked("chess")


def _take_in_a_process(address: str, types: Sequence[str]) -> dict[str, str]:
    names = Names(Entries(address))
    names.think()
    while True:
        found = {type_name: names.take(wanted(type_name)) for type_name in types}
        if not names.write()[0]:
            return found


def test_processes_agree(tmp_path: Path) -> None:
    sets = [[f"{letter}{n}" for n in range(25) for letter in order] for order in ("aA", "Ab")]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_take_in_a_process, str(tmp_path), types) for types in sets]
        answers = [job.result() for job in jobs]
    found: dict[str, str] = {}
    for answer in answers:
        assert all(found.setdefault(type_name, name) == name for type_name, name in answer.items())
    assert len(set(found.values())) == len(found)
    assert Lake(str(tmp_path)).take(*found) == list(found.values())


def test_names_are_the_same_after_a_restart_in_any_order(lake: Lake) -> None:
    types = ["CHESS", "chess", "Chess", "Größe", "go"]
    before = dict(zip(types, lake.take(*types), strict=True))
    assert dict(zip(types[::-1], lake.take(*types[::-1]), strict=True)) == before


def test_of_many_at_once_one_has_the_plain_name(lake: Lake) -> None:
    types = ["chess", "Chess", "CHESS", "cHess", "chESS", "cheSs"]
    together, found = threading.Barrier(len(types)), dict[str, str]()

    def take(type_name: str) -> None:
        names = lake.names()
        together.wait()
        found[type_name] = names.take(wanted(type_name))

    threads = [threading.Thread(target=take, args=(name,)) for name in types]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = [name for name in types if found[name] == "silver_chess"]
    assert found == {name: marked(name) for name in types} | {first: "silver_chess"}
    assert lake.take(*types) == [found[name] for name in types]


def test_a_type_keeps_its_name_in_a_process_that_knew_nothing_of_it(lake: Lake) -> None:
    older = lake.names()
    assert lake.take("chess", "Chess") == ["silver_chess", marked("Chess")]
    Entries(lake.address).forget(["silver_chess"])
    assert older.take(wanted("Chess")) == marked("Chess")


def test_a_trial_takes_nothing(lake: Lake) -> None:
    lake.take("go")
    trial = lake.names(trial=True)
    assert [trial.take(wanted(t)) for t in ("Go", "Chess", "chess")] == [
        marked("Go"),
        "silver_chess",
        marked("chess"),
    ]
    assert lake.take("chess", "Chess") == ["silver_chess", marked("Chess")]


def test_a_trial_makes_no_folder(tmp_path: Path) -> None:
    Lake(str(tmp_path)).names(trial=True).take(wanted("chess"))
    assert list(tmp_path.iterdir()) == []


def test_names_are_given_back(lake: Lake) -> None:
    assert lake.take("Chess", "go") == ["silver_chess", "silver_go"]
    Entries(lake.address).forget(["silver_chess"])
    assert lake.take("chess", "Go") == ["silver_chess", marked("Go")]
    Entries(lake.address).forget(["silver_never", "silver_chess", "silver_go"])
    assert lake.take("Go") == [marked("Go")]


def test_a_lake_without_names_is_fine(tmp_path: Path) -> None:
    Entries(str(tmp_path / "none")).forget(["silver_chess"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("ledger", "types", "names"),
    [
        ({"silver_chess": "chess"}, ["Chess", "chess"], [marked("Chess"), "silver_chess"]),
        ({marked("Chess"): "Chess"}, ["Chess", "chess"], [marked("Chess"), "silver_chess"]),
        ({"silver_chess": "Chess"}, ["chess", "Chess"], [marked("chess"), "silver_chess"]),
        # a table of no type, as bronze is, is nobody's
        ({"silver_chess": ""}, ["chess"], [marked("chess")]),
        # the table of another, whatever letters the ledger has
        ({"Silver_Chess": "shop.Chess"}, ["chess"], [marked("chess")]),
    ],
)
def test_tables_from_before_there_were_entries_stay_with_their_types(
    tmp_path: Path, ledger: dict[str, str], types: list[str], names: list[str]
) -> None:
    lake = Lake(str(tmp_path))
    assert lake.take(*types, ledger=ledger) == names
    assert lake.take(*types) == names


def test_an_entry_that_was_cut_short_stays_taken(tmp_path: Path) -> None:
    folder = Path(layout.names(str(tmp_path)))
    folder.mkdir(parents=True)
    (folder / "silver_chess.json").write_text('{"own')
    assert Lake(str(tmp_path)).take("chess") == [marked("chess")]


def test_a_topic_has_one_table_whatever_is_in_it(tmp_path: Path) -> None:
    def of_topic(topic: str, type_name: str) -> WantedName:
        return WantedName(type_name, {"topic": topic}, (propose("{topic}", topic=topic),))

    names = Lake(str(tmp_path)).names(ledger={"orders_v1": "shop.Order"})
    assert names.take(of_topic("orders_v1", "shop.Item")) == "orders_v1"
    assert names.take(of_topic("orders-v1", "shop.Order")).startswith("orders_v1_x")


def test_without_a_lake_names_do_not_depend_on_who_comes_first() -> None:
    for types in (["Chess", "chess"], ["chess", "Chess"]):
        names = Names()
        found = {type_name: names.take(wanted(type_name)) for type_name in types}
        assert found == {"chess": "silver_chess", "Chess": marked("Chess")}


def claimed(lake: Lake, each: str, *claims: str, ledger: dict[str, str] | None = None) -> list[str]:
    names, tables = lake.names(ledger=ledger), Tables(each=each)
    return [names.take(source_table(tables, c, reserved=frozenset()).wanted) for c in claims]


def test_two_ways_to_cut_the_name_of_a_source_table(tmp_path: Path) -> None:
    claims = ['["my_shop","","orders"]', '["my","","shop_orders"]', '["My_Shop","","Orders"]']
    lake, each = Lake(str(tmp_path)), "{database}_{table}"
    first, second, third = found = claimed(lake, each, *claims)
    assert first == "my_shop_orders"
    assert second.startswith("my_shop_orders_x") and third.startswith("my_shop_orders_x")
    assert claimed(lake, each, *reversed(claims)) == found[::-1]
    # a log says which name it belongs to
    Entries(lake.address).forget(["my_shop_orders_log"])
    assert claimed(lake, each, claims[2]) == [third]
    assert claimed(lake, each, '["my.shop","","orders"]') == ["my_shop_orders"]


def test_source_tables_of_one_name_in_two_schemas_stay_two(tmp_path: Path) -> None:
    claims = ['["a","public","t"]', '["b","public","t"]', '["a","audit","t"]']
    assert claimed(Lake(str(tmp_path)), "{table}", *claims) == ["t", "t", "audit_t"]


def test_a_log_from_before_keeps_its_name_with_its_tables(tmp_path: Path) -> None:
    claim = '["my_shop","","orders"]'
    alone = propose("{database}_{table}", database="my_shop", table="orders").alone
    ledger = {f"{alone}_log": claim, alone: claim}
    each = "{database}_{table}"
    assert claimed(Lake(str(tmp_path)), each, claim, ledger=ledger) == [alone]
    taken = {"my_shop_orders_log": "orders log"}
    (found,) = claimed(Lake(str(tmp_path / "other")), each, claim, ledger=taken)
    assert found == alone


TYPES = st.one_of(
    st.text("aAbB_.- ", min_size=1, max_size=4),
    st.text("aAé日ßİK\u0131", min_size=1, max_size=3),
    st.sampled_from(["chess", "Chess", "CHESS", "con", "order", "Order", "dead_letters"]),
    st.sampled_from(["a" * 150, "A" * 150, "a" * 149 + "b", f"chess_x{'0' * 10}"]),
    st.text(max_size=10),
).filter(lambda name: refused_type_name(name, strict=False) is None)


@given(
    st.lists(TYPES, min_size=1, max_size=12, unique=True),
    st.sampled_from(["silver_{type}", "{type}"]),
    st.randoms(use_true_random=False),
)
def test_every_type_has_a_table_of_its_own_for_ever(
    types: Sequence[str], template: str, random: Callable[..., object]
) -> None:
    with TemporaryDirectory() as folder:
        lake = Lake(folder)
        taken: dict[str, str] = {}
        names = lake.names()
        for type_name in types:
            if random.random() < 0.3:  # type: ignore[attr-defined]
                names = lake.names()
            taken[type_name] = names.take(wanted(type_name, template))
        folded = {name.lower() for name in taken.values()}
        assert len(folded) == len(types)
        assert all(len(name.encode()) <= 255 - len("_history") for name in taken.values())
        again = lake.names()
        assert {t: again.take(wanted(t, template)) for t in reversed(types)} == taken
        for type_name, name in taken.items():
            found = propose(template, type=type_name)
            # nothing but the plain name depends on who came first
            assert name in (found.plain, next(found.marked()))
            if name != found.plain and found.plain:
                assert found.plain in taken.values()
