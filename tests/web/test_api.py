"""What the page is told."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from distributary.errors import ErrorCode, meanings
from distributary.model.deadletter import dead_letter_id
from distributary.web import dashboard
from distributary.web.reading import LakeReader
from tests.waiting import eventually
from tests.web.conftest import Running, Start
from tests.web.lakes import HOSTILE, WebLake


def test_the_overview_says_how_it_stands(page_of_busy: Running) -> None:
    told = page_of_busy.get("/api/overview")
    assert told["version"] == 1
    (games,) = told["pipelines"]
    assert games["state"] == "unknown"
    assert games["totals"] == {
        "read": 603,
        "written": 580,
        "dead_lettered": 3,
        "parked": 20,
        "skipped": 0,
        "filtered": 0,
    }
    assert games["balanced"]
    assert [p["table"] for p in games["parked"]] == ["silver_go"]
    assert games["tables"]["total"] == 4
    assert games["batch"] == 19


def test_tables_are_searched_sorted_and_paged(page_of_busy: Running) -> None:
    told = page_of_busy.get("/api/tables")
    assert (told["total"], told["pages"]) == (4, 1)
    assert told["tables"][0]["table"]["table"] == "silver_go"
    none = {"missing": 0, "behind": 0, "stale": 0, "absent": 0, "refusing": 0, "doubtful": 0}
    assert told["counts"] == {**none, "parked": 1, "healthy": 3}
    names = [t["table"]["table"] for t in page_of_busy.get("/api/tables?sort=table")["tables"]]
    assert names == sorted(names)
    assert page_of_busy.get("/api/tables?q=CHESS")["matching"] == 1
    assert page_of_busy.get("/api/tables?health=parked")["matching"] == 1
    assert page_of_busy.get("/api/tables?role=dead_letters")["matching"] == 1
    assert page_of_busy.get("/api/tables?pipeline=other")["matching"] == 0
    second = page_of_busy.get("/api/tables?size=3&page=2&sort=rows&order=desc")
    assert (second["page"], second["pages"], len(second["tables"])) == (2, 2, 1)
    assert page_of_busy.get("/api/tables?page=99")["tables"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/api/tables?sort=path",
        "/api/tables?page=-1",
        "/api/tables?size=1e3",
        "/api/series?window=year",
        "/api/dead-letters?status=lost",
        f"/api/search?q={'x' * 400}",
    ],
)
def test_nonsense_is_answered_with_a_code(page_of_busy: Running, path: str) -> None:
    with page_of_busy.client() as client:
        answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "CONFIG_INVALID"


@pytest.mark.parametrize(
    "path",
    [
        "/api/tables/nothing",
        "/api/tables/..%2F..%2Fetc%2Fpasswd",
        "/api/preview?table=_distributary/ledger/batches",
        "/api/preview",
        "/api/pipelines/nothing",
        "/api/batches/games/999",
        f"/api/batches/games/{10**30}",
        f"/api/batches/games/{'9' * 5000}",
        "/api/batches/games/²",
        "/api/dead-letters/ffffffffffffffff",
        "/api/dead-letters/not-hex",
        "/api/schemas/nothing",
        "/api/errors/NO_SUCH_CODE",
        "/api/jobs/nothing",
        "/api/nothing",
        "/api/tables/a%0Ab",
        f"/api/tables/{quote('<img src=x onerror=alert(1)>', safe='')}",
    ],
)
def test_what_is_not_there_is_not_found(page_of_busy: Running, path: str) -> None:
    with page_of_busy.client() as client:
        answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NOT_FOUND"
    assert answer.headers["content-type"].startswith("application/json")


def test_a_table_with_a_hostile_name_has_a_page_like_any_other(page_of_busy: Running) -> None:
    told = page_of_busy.get(f"/api/tables/{quote(HOSTILE, safe='')}")
    assert told["table"]["table"] == HOSTILE
    rows = page_of_busy.get("/api/preview", params={"table": HOSTILE})
    # the newest first
    assert rows["rows"][0][0] == f"{HOSTILE} 2"


def test_one_table_whole(page_of_busy: Running) -> None:
    told = page_of_busy.get("/api/tables/silver_chess")
    assert [c["name"] for c in told["about"]["columns"]][:2] == ["move", "_topic"]
    assert told["refused"] == [{"code": "UNKNOWN_SCHEMA_ID", "count": 2} | _seen(told["refused"])]
    commits = page_of_busy.get("/api/commits?table=silver_chess")
    assert [c["batch"] for c in commits["commits"]][:3] == [19, 18, 17]
    assert len(commits["points"]) == 20
    assert commits["points"][0]["pause"] is None
    assert commits["points"][1]["pause"] == 20
    parked = page_of_busy.get("/api/tables/silver_go")
    assert (parked["health"], parked["table"]["parked_records"]) == ("parked", 20)


def _seen(refused: list[dict[str, object]]) -> dict[str, object]:
    return {"last_seen": refused[0]["last_seen"]}


def test_rules_are_shown_with_what_they_found(page_of_busy: Running) -> None:
    (rule,) = page_of_busy.get("/api/tables/silver_chess")["expectations"]
    assert (rule["rule"], rule["checked"], rule["violated"]) == ("move is known", 200, 40)
    assert page_of_busy.get("/api/tables/silver_go")["expectations"] == []
    (whole,) = page_of_busy.get("/api/pipelines/games")["pipeline"]["expectations"]
    assert whole["violating"][0]["table"] == "silver_chess"


def test_schema_history_is_a_diff(page_of_busy: Running) -> None:
    newest, oldest = page_of_busy.get("/api/schemas/silver_chess")["versions"]
    assert [(line["sign"], line["text"]) for line in newest["lines"]] == [
        ("+", "rating int"),
        ("~", "score int to bigint"),
    ]
    assert [line["text"] for line in oldest["lines"]] == ["table", "move string", "_offset bigint"]
    assert page_of_busy.get("/api/schemas")["total"] == 4


def test_numbers_over_time(page_of_busy: Running) -> None:
    told = page_of_busy.get("/api/series?pipeline=games")
    (games,) = told["pipelines"]
    assert len(games["points"]) == 20
    assert games["points"][0] | {"at": ""} == {
        "at": "",
        "batch": 0,
        "rate": 16.5,
        "read": 33,
        "dead": 3,
        "lag": 500,
        "age": 1.5,
    }
    assert page_of_busy.get("/api/series?pipeline=other")["pipelines"][0]["points"] == []


def test_a_batch_has_its_steps_and_tables(page_of_busy: Running) -> None:
    (batch,) = page_of_busy.get("/api/batches/games/19")["batches"]
    assert batch["balanced"] and batch["counts"]["parked"] == 10
    assert batch["steps"]["stage"] == 1.4
    assert {t["table"]: t["outcome"] for t in batch["touched"]}["silver_go"] == "parked"
    assert len(page_of_busy.get("/api/batches?last=5")["batches"]) == 5


def test_dead_letters_by_reason_and_whole(page_of_busy: Running) -> None:
    told = page_of_busy.get("/api/dead-letters")
    assert [(r["code"], r["count"]) for r in told["reasons"]] == [
        ("UNKNOWN_SCHEMA_ID", 2),
        ("NULL_VALUE", 1),
    ]
    assert len(page_of_busy.get("/api/dead-letters?reason=NULL_VALUE")["letters"]) == 1
    assert page_of_busy.get("/api/dead-letters?status=replayed")["letters"] == []
    one = page_of_busy.get(f"/api/dead-letters/{dead_letter_id('games', 'life', 'wrapper', 0, 20)}")
    assert one["bytes"] == 45
    assert one["hex"][0].startswith("00000000  00 00 00 00 07 00 3c 73")
    assert one["failing_byte"] == 9
    assert not one["with_schema"]
    empty = page_of_busy.get(
        f"/api/dead-letters/{dead_letter_id('games', 'life', 'wrapper', 0, 22)}"
    )
    assert (empty["bytes"], empty["hex"]) == (None, [])


def test_search_finds_names_codes_ids_and_records(page_of_busy: Running) -> None:
    def hits(asked: str) -> list[tuple[str, str]]:
        told = page_of_busy.get("/api/search", params={"q": asked})
        return [(hit["kind"], hit["label"]) for hit in told["hits"]]

    assert hits("chess") == [("table", "silver_chess")]
    assert ("pipeline", "games") in hits("game")
    assert ("error code", "NULL_VALUE") in hits("null value")
    id = dead_letter_id("games", "life", "wrapper", 0, 20)
    assert hits(id[:6]) == [("dead letter", id)]
    assert hits("") == []
    trace = page_of_busy.get("/api/search?q=wrapper/0/20")["trace"]
    assert (trace["verdict"], trace["dead_letters"][0]["id"]) == ("dead_letter", id)
    assert page_of_busy.get("/api/search?q=wrapper/0/99999")["trace"]["verdict"] == "not_read"
    assert page_of_busy.get("/api/search", params={"q": f"wrapper/0/{10**40}"})["trace"] is None


def test_every_code_is_explained(page_of_busy: Running) -> None:
    assert set(meanings()) == set(map(str, ErrorCode))
    told = page_of_busy.get("/api/errors/UNKNOWN_SCHEMA_ID")
    assert told["meaning"] and told["letters"][0]["count"] == 2


def test_an_empty_folder_is_a_lake_without_pipelines(tmp_path: Path, start: Start) -> None:
    page = start(tmp_path)
    assert page.get("/api/overview")["pipelines"] == []
    assert page.get("/api/tables")["total"] == 0
    assert page.get("/api/dead-letters")["reasons"] == []
    assert page.get("/api/series")["pipelines"] == []
    assert page.get("/api/schemas")["versions"] == []
    assert page.get("/api/search?q=wrapper/0/1")["trace"]["verdict"] == "unknown_source"


def test_a_lake_that_goes_away_and_comes_back(own: Path, start: Start) -> None:
    page, away = start(own), own.with_name("away")
    assert page.get("/api/tables")["total"] == 4
    before = page.get("/api/overview")
    shutil.move(own, away)
    meanwhile = page.get("/api/overview")
    assert before["unavailable"] is None
    assert meanwhile["unavailable"]["code"] == "LAKE_UNAVAILABLE"
    assert [p["totals"] for p in meanwhile["pipelines"]] == [
        p["totals"] for p in before["pipelines"]
    ]
    # its checkpoint went with it
    assert {p["state"] for p in meanwhile["pipelines"]} == {"unknown"}
    with page.client() as client:
        gone = client.get("/api/tables")
        assert gone.status_code == 503
        assert gone.json()["error"]["code"] == "LAKE_UNAVAILABLE"
    shutil.move(away, own)
    assert page.get("/api/tables")["total"] == 4
    assert page.get("/api/overview")["unavailable"] is None


def test_a_lake_that_is_back_before_anybody_looked_is_news_to_whoever_missed_it(own: Path) -> None:
    reading = LakeReader(str(own))
    reading.status()
    before = reading.stamp()
    away = own.with_name("away")
    own.rename(away)
    assert reading.status().unavailable is not None
    away.rename(own)
    assert reading.stamp() != before
    assert reading.status().unavailable is None
    assert reading.stamp() == before


def test_what_a_pipeline_adds_is_seen_at_once(tmp_path: Path, start: Start) -> None:
    lake = WebLake(tmp_path / "lake")
    page = start(lake.path)
    assert page.get("/api/tables")["total"] == 0
    lake.settle(0, {"silver_chess": "chess"})
    assert page.get("/api/tables")["total"] == 1
    lake.settle(1, {"silver_chess": "chess", "silver_go": "go"})
    assert page.get("/api/tables")["total"] == 2
    assert page.get("/api/overview")["pipelines"][0]["batch"] == 1


def test_events_say_that_something_changed(tmp_path: Path, start: Start) -> None:
    lake = WebLake(tmp_path / "lake")
    page = start(lake.path)
    with page.client() as client, client.stream("GET", "/api/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert "event: hello" in [next(lines) for _ in range(4)]
        lake.settle(0, {"silver_chess": "chess"})
        eventually(lambda: next(lines) == "event: changed", seconds=30)
        assert next(lines) == 'data: ["lake"]'


def test_more_live_pages_than_allowed_are_asked_to_come_back(
    page_of_busy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_MOST_LISTENERS", 2)
    with page_of_busy.client() as client:
        with ExitStack() as stack:
            for _ in range(2):
                stream = stack.enter_context(client.stream("GET", "/api/events"))
                assert stream.status_code == 200
            answer = client.get("/api/events")
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "ACCESS_DENIED"
            assert int(answer.headers["retry-after"]) > 0

        def is_open() -> bool:
            with client.stream("GET", "/api/events") as stream:
                return stream.status_code == 200

        eventually(is_open, seconds=60)


def test_settings_are_shown_without_secrets(own: Path, start: Start) -> None:
    WebLake(own)
    file = own / "games.yaml"
    file.write_text(
        f"""
name: games
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:1
  topics: [wrapper]
  options: {{kafka.sasl.jaas.config: "a secret of the tests"}}
registry: {{path: {own}/schemas}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {own}}}
"""
    )
    served = start(own, file=str(file))
    found = served.get("/api/settings", params={"pipeline": "games"})
    shown = {row["key"]: row["value"] for row in found["settings"]}
    assert shown["source.bootstrap_servers"] == "127.0.0.1:1" and found["why"] is None
    assert "a secret of the tests" not in json.dumps(found)
    # a file that only the lake names is not opened
    other = start(own).get("/api/settings", params={"pipeline": "games"})
    assert other["why"]["code"] == "FILE_NOT_TRUSTED" and other["settings"] == []


def test_columns_that_came_later_are_told(page_of_busy: Running) -> None:
    # of those that the history names, the table itself has none any more
    columns = page_of_busy.get("/api/tables/silver_chess")["about"]["columns"]
    assert {column["name"]: column["added"] for column in columns}["move"] is None


def test_the_newest_rows_come_first(own: Path, start: Start) -> None:
    lake = WebLake(own)
    lake.rows("silver_chess", 3, first=100)
    told = start(own).get("/api/preview", params={"table": "silver_chess"})
    offset = [column["name"] for column in told["columns"]].index("_offset")
    assert [row[offset] for row in told["rows"]][:4] == ["102", "101", "100", "11"]
