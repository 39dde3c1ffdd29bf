"""A receipt: everything that is known, in one page that does nothing and can be compared."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from distributary.errors import ConfigError, ErrorCode
from distributary.model.expectation import Action, RuleCount
from distributary.model.manifest import SchemaUse
from distributary.model.table import Change, ChangeKind, Role
from distributary.observe.pipelines import Registration, register
from distributary.observe.receipt import check_place, receipt, write_receipt
from distributary.observe.receipt_page import MARK, MOST_CHANGES
from distributary.observe.status import status

HOSTILE = "<img src=x onerror=alert(1)>"
CLOSING = "</script><script>alert(2)</script>\u202e\x1b]\ud800"
VERSIONS = {"distributary": "0.1.0", "Python": "3.11"}


class Elements(HTMLParser):
    """What a browser would find: elements with their attributes, texts, and blocks of data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.data = [], [], [], {}
        self._block = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._block = dict(attrs) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._block = None

    def handle_data(self, data):
        if self._block is None:
            self.texts.append(data)
        elif "id" in self._block:
            self.data[self._block["id"]] = data


def use(table, text="player", label="chess-value v3"):
    change = Change(ChangeKind.COLUMN_ADDED, text, after="string", action="add")
    return SchemaUse(table, table, 7, label, (change,))


@pytest.fixture
def busy(lake, noon):
    """Dead letters, a parked table, a rule, changed schemas; names that would like to be markup."""
    register(lake.path, Registration("games", "games.yaml", "cp/games"))
    rule = RuleCount(HOSTILE, Action.WARN, 10, 2, first=("wrapper", 0, 3))
    for batch in range(3):
        entries = [
            replace(lake.entry("chess", records=60), rules=(rule,)),
            lake.entry("go", records=30, type=HOSTILE),
            lake.entry("dead", records=10, role=Role.DEAD_LETTERS, type=""),
        ]
        uses = [use("chess", HOSTILE, CLOSING.replace("\ud800", ""))] if batch == 1 else []
        made = lake.manifest(batch, entries=entries, dead_letters={"BAD": 10}, schemas=uses)
        lake.settle(made, parked=["go"] if batch == 2 else [])
    lake.dead_letters(
        [{"offset": n, "error_code": "BAD_MAGIC", "type": HOSTILE} for n in range(30)]
    )
    lake.stand("chess", "go", versions=3)
    return lake


def made(lake, **more):
    now = status(lake.path, **more)
    return receipt(now, versions=VERSIONS)


def test_everything_is_told(busy, noon):
    found = made(busy, now=noon + timedelta(minutes=3), liveness=lambda checkpoint: "stopped")
    page = Elements(found.page().decode())
    text = "\n".join(page.texts)
    for part in (
        "games",
        "stopped",
        "read 300 = written 240 + dead letters 30 + parked 30",
        "distributary 0.1.0",
        "2026-11-15 12:03:00 UTC",
        "2026-11-15 12:00:20 UTC",
        "level",
        "disk is full",
        "BAD_MAGIC",
        HOSTILE,
        "30 open",
        found.sha256,
    ):
        assert part in text, part
    (games,) = found.facts["pipelines"]
    assert [t["table"] for t in games["tables"]] == ["chess", "dead", "go"]
    assert [(t["rows"], t["health"]) for t in games["tables"]][2] == (60, "parked")
    assert [b["read"] for b in games["batches"]] == [100, 100, 100]
    assert [(r["rule"], r["violated"]) for r in games["expectations"]] == [(HOSTILE, 6)]
    assert [c["batch"] for c in games["schemas"]] == [1]
    assert page.tags.count("svg") == 5  # two drawings and three keys
    assert json.loads(page.data["about"])["pipelines"][0]["settled_meanwhile"] is False


def test_nothing_in_it_runs_or_calls(busy):
    found = made(busy)
    facts = {**found.facts, "lake": CLOSING + HOSTILE, "more": CLOSING}
    page = replace(found, facts=facts).page().decode("utf-8")
    read = Elements(page)
    assert page.startswith(MARK)
    assert read.tags.count("script") == 2 and "img" not in read.tags
    assert sorted(v for k, v in read.attributes if k == "type") == ["application/json"] * 2
    assert not [k for k, _ in read.attributes if k.startswith("on") or k in ("src", "href")]
    policies = [value for name, value in read.attributes if name == "content"]
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in policies
    assert not re.search(r"https?://|@import|url\(", page)
    assert "\u202e" not in page and "\x1b" not in page
    assert json.loads(read.data["facts"])["more"] == CLOSING


def test_the_fingerprint_is_of_the_line_in_the_page_and_stays_while_the_lake_does(busy, noon):
    first = made(busy, now=noon)
    line = Elements(first.page().decode()).data["facts"]
    assert hashlib.sha256(line.encode()).hexdigest() == first.sha256
    assert "\n" not in line and json.loads(line) == first.facts
    later = made(busy, now=noon + timedelta(days=1), liveness=lambda checkpoint: "crashed")
    assert later.sha256 == first.sha256 and later.about != first.about
    busy.settle(busy.manifest(3))
    assert made(busy, now=noon).sha256 != first.sha256


def test_a_batch_that_is_settled_meanwhile_is_mentioned(busy):
    now = status(busy.path)
    busy.settle(busy.manifest(3))
    found = receipt(now, versions=VERSIONS)
    assert found.about["pipelines"][0]["settled_meanwhile"] is True
    assert "settled while this was read" in found.page().decode()


def test_an_empty_lake_and_a_pipeline_before_its_first_batch(lake):
    assert "No pipeline has settled" in made(lake).page().decode()
    register(lake.path, Registration("new", "new.yaml", "cp"))
    found = made(lake)
    assert "lag unknown" in found.page().decode()
    assert found.facts["pipelines"][0]["tables"] == []


def test_a_thousand_tables_are_all_there_and_old_changes_are_in_the_facts(lake):
    entries = [lake.entry(f"t{n:04}") for n in range(1000)]
    for batch in range(3):
        uses = [use(f"t{n:04}") for n in range(1000)]
        lake.settle(lake.manifest(batch, entries=entries if not batch else None, schemas=uses))
    found = made(lake)
    page = Elements(found.page().decode())
    assert {f"t{n:04}" for n in range(1000)} <= set(page.texts)
    (games,) = found.facts["pipelines"]
    assert len(games["tables"]) == 1001 and len(games["schemas"]) == 3000
    # headers of three tables, one pipeline
    assert page.tags.count("tr") == 1001 + MOST_CHANGES + 3 + 1


def test_secrets_that_are_known_do_not_get_in(busy):
    now = status(busy.path)
    found = receipt(now, versions=VERSIONS, mask=lambda text: text.replace("disk", "***"))
    assert b"*** is full" in found.page() and b"disk" not in found.page()


def test_a_receipt_is_replaced_and_nothing_else_is(lake, tmp_path):
    path = tmp_path / "out.html"
    found = made(lake)
    write_receipt(path, found)
    write_receipt(path, replace(found, about={**found.about, "versions": {"x": "2"}}))
    assert b"x 2" in path.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["out.html"]
    other = tmp_path / "thesis.html"
    for content in (b"", b"<!doctype html>\n<!-- mine -->"):
        other.write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            write_receipt(other, found)
        assert refused.value.code is ErrorCode.CONFIRMATION_NEEDED
        assert other.read_bytes() == content


def test_places_that_cannot_hold_a_receipt(lake, tmp_path):
    for place in (tmp_path, tmp_path / "no" / "out.html", tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError) as refused:
            check_place(place)
        assert refused.value.code is ErrorCode.CONFIG_INVALID
