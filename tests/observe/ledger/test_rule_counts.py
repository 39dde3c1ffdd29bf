"""What rules have found: in the ledger batch by batch, in sums, after expiry, in an old lake."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from distributary.model import layout
from distributary.model.manifest import Manifest
from distributary.model.rules.expectation import Action, RuleCount
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_table import LedgerTable
from distributary.observe.ledger.recording import TABLES
from distributary.observe.status.status import status


def ruled(lake, name, *counts, records=10):
    return replace(lake.entry(name, records=records), rules=counts)


def broken(rule, checked, violated, *, action=Action.WARN, offset=3):
    first = ("wrapper", 0, offset) if violated else None
    return RuleCount(rule, action, checked, violated, first=first)


def test_rules_are_summed_over_batches_and_tables(lake, noon):
    unfit = RuleCount("has_player", Action.FAIL, unfit="no column player")
    for batch in range(3):
        entries = [
            ruled(lake, "chess", broken("sane", 10, batch, offset=batch), unfit),
            ruled(lake, "go", broken("sane", 5, 0)),
        ]
        lake.settle(lake.manifest(batch, entries=entries))
    has_player, chess, go = lake.ledger.rules()
    assert (chess.table, chess.rule, chess.action) == ("chess", "sane", "warn")
    assert (chess.checked, chess.violated, chess.example) == (30, 3, "wrapper/0/2")
    assert chess.last_violated == noon + timedelta(seconds=20)
    assert (go.checked, go.violated, go.example, go.last_violated) == (15, 0, "", None)
    assert (has_player.unfit, has_player.checked) == ("no column player", 0)
    assert lake.ledger.rules("other") == ()
    sane, other = status(lake.path).pipelines[0].expectations
    assert (sane.rule, sane.checked, sane.violated, sane.tables) == ("sane", 45, 3, 2)
    assert [(t.table, t.violated) for t in sane.violating] == [("chess", 3)]
    assert (other.tables, other.unfit_tables, other.unfit[0].table) == (0, 1, "chess")
    document = status(lake.path).as_dict()["pipelines"][0]["expectations"]
    assert document[0]["violating"][0]["example"] == "wrapper/0/2"


def test_a_rule_that_fits_now_is_no_longer_unfit(lake):
    counts = [RuleCount("r", Action.WARN, unfit="no column x"), broken("r", 10, 1)]
    for batch, count in enumerate(counts):
        lake.settle(lake.manifest(batch, entries=[ruled(lake, "chess", count)]))
    (found,) = lake.ledger.rules()
    assert (found.unfit, found.checked, found.violated) == ("", 10, 1)


def test_what_is_parked_counts_once_it_is_resumed(lake):
    entries = [ruled(lake, "chess", broken("r", 10, 2))]
    manifest = lake.settle(lake.manifest(0, entries=entries), parked=["chess"])
    assert lake.ledger.rules() == ()
    (waiting,) = lake.ledger.parked()
    assert waiting.expectations[0]["violated"] == 2
    lake.resume(Manifest.from_json(manifest.to_json()), "chess")
    (found,) = lake.ledger.rules()
    assert (found.checked, found.violated) == (10, 2)


def test_a_manifest_keeps_what_rules_have_found(lake):
    entries = [ruled(lake, "chess", broken("r", 10, 2), RuleCount("s", Action.FAIL, unfit="why"))]
    manifest = lake.manifest(0, entries=entries)
    assert Manifest.from_json(manifest.to_json()) == manifest
    # as it was written before there were rules
    old = manifest.to_json().replace('"rules"', '"older"')
    assert Manifest.from_json(old).tables[0].rules == ()


def test_expiry_leaves_the_sums_as_they_were(lake, noon):
    for batch in range(4):
        unfit = RuleCount("s", Action.FAIL, unfit=f"reason {batch}")
        entries = [ruled(lake, "chess", broken("r", 10, batch, offset=batch), unfit)]
        entries += [lake.entry("go")]
        lake.settle(lake.manifest(batch, entries=entries))
    before = [(r.rule, r.checked, r.violated, r.unfit, r.example) for r in lake.ledger.rules()]
    lake.ledger.expire(noon + timedelta(seconds=25))
    after = [(r.rule, r.checked, r.violated, r.unfit, r.example) for r in lake.ledger.rules()]
    assert after == before
    assert before == [("r", 40, 6, "", "wrapper/0/3"), ("s", 0, 0, "reason 3", "")]
    assert [t.rows for t in lake.ledger.tables()] == [40, 40]


def test_a_lake_from_before_there_were_rules_is_read_and_written(lake, noon):
    older = pa.schema([field for field in TABLES if field.name != "expectations"])
    lake.settle(lake.manifest(0))
    rows = Ledger(lake.path)._tables.read().select(older.names)
    old = layout.ledger_table(f"{lake.path}/old", "tables")
    LedgerTable(
        old, schema=older, indexed=("pipeline", "batch", "outcome"), description="older"
    ).append_once(rows, app_id="distributary/games/life1/stream", version=0)
    ledger = Ledger(f"{lake.path}/old")
    assert ledger.rules() == ()
    assert [t.rows for t in ledger.tables()] == [10]
    assert ledger.parked() == ()
    entries = [ruled(lake, "chess", broken("r", 10, 1))]
    lake.settle(lake.manifest(1, entries=entries), ledger=ledger)
    assert [(r.rule, r.violated) for r in Ledger(f"{lake.path}/old").rules()] == [("r", 1)]
    assert [t.rows for t in ledger.tables()] == [20]
    ledger.expire(noon + timedelta(days=1))
    assert [(r.rule, r.violated) for r in ledger.rules()] == [("r", 1)]


def test_a_thousand_tables_are_one_line_a_rule(lake):
    entries = [ruled(lake, f"t{n:04}", broken("r", 10, n % 2)) for n in range(1000)]
    lake.settle(lake.manifest(0, entries=entries))
    (rule,) = status(lake.path).pipelines[0].expectations
    assert (rule.tables, rule.violated, rule.violating_tables) == (1000, 500, 500)
    assert len(rule.violating) == 5
