"""Rows are held to rules in hop two: counted, dead-lettered whole, or reported as refusing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.config.load import load_text
from distributary.config.rules.expectations import Expectation
from distributary.errors import ErrorCode
from distributary.model.facts import RulesCounted
from distributary.model.record import Format
from distributary.model.rules.expectation import Action, RuleCount, type_spellings
from distributary.model.table import Column, Role, TablePlan
from distributary.stage.job import Staged
from distributary.stage.rows.checking import count_changes, unfit_rules
from distributary.stage.task_plan import OutputPlan, RecordsPlan, TaskPlan
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench, raw_batch, raw_records

MakeBench = Callable[..., Bench]

ALL_TABLES = "{bronze: bronze_events, each: 'silver_{type}', unified: unified_gold}"
CHESS, POKER = "silver_chess_game", "silver_poker_game"


def rules(*each: dict[str, Any]) -> str:
    return f"expectations: {json.dumps(list(each))}"


def games(bench: Bench, **plan: int) -> list[pa.RecordBatch]:
    raw: list[pa.RecordBatch] = []
    for one in stream_rounds(GamesPlan(**plan), registry=bench.registry):
        raw += raw_records(one.arrow(), sum(b.num_rows for b in raw))
    return raw


def found(staged: Staged, table: str) -> dict[str, tuple[int, int]]:
    return {c.rule: (c.checked, c.violated) for c in staged.rules.get(table, ())}


def offsets(bench: Bench, staged: Staged, table: str) -> set[int]:
    rows = bench.rows(staged, table)
    name = "offset" if table == "dead_letters" else "_offset"
    return set(rows[name].to_pylist())


def test_a_warning_is_counted_and_its_rows_are_written(bench: MakeBench) -> None:
    one = bench(extra=rules({"name": "r", "check": "_offset % 10 <> 4", "tables": ["silver_*"]}))
    staged = one.stage(games(one, games=3, versions=2, records=20))
    violated = 0
    for table, counts in staged.rules.items():
        (count,) = counts
        assert (count.rule, count.action, count.checked) == ("r", Action.WARN, 40)
        violated += count.violated
        assert staged.records[table] == 40
    assert violated == 12
    assert not staged.dead
    firsts = [count.first for counts in staged.rules.values() for count in counts if count.first]
    assert min(firsts) == ("wrapper", 0, 4)


def test_a_dead_lettered_record_is_in_no_table_but_bronze(bench: MakeBench) -> None:
    rule = {"name": "third", "check": "_offset % 3 <> 1", "action": "dead_letter"}
    one = bench(ALL_TABLES, rules(rule))
    raw = games(one, games=2, versions=2, records=10)
    staged = one.stage(raw)
    bad = set(range(1, 40, 3))
    good = set(range(40)) - bad
    assert staged.dead == {ErrorCode.EXPECTATION_FAILED: 13}
    assert offsets(one, staged, "dead_letters") == bad
    assert offsets(one, staged, "unified_gold") == good
    assert offsets(one, staged, CHESS) | offsets(one, staged, POKER) == good
    assert offsets(one, staged, "bronze_events") == bad | good
    assert staged.seen == staged.records[CHESS] + staged.records[POKER] + 13
    assert staged.records["unified_gold"] == 27
    values = {r["offset"]: r["value"] for batch in raw for r in batch.to_pylist()}
    for letter in one.rows(staged, "dead_letters").to_pylist():
        assert letter["value"] == values[letter["offset"]]
        assert letter["stage"] == "rules"
        assert "third" in letter["error_message"]
        assert f"_offset = {letter['offset']}" in letter["error_message"]
        assert letter["type"] in ("chess_game", "poker_game")
        assert letter["schema_id"] is not None


def test_a_table_whose_records_are_all_refused_gets_no_file(bench: MakeBench) -> None:
    rule = {"name": "none", "check": "_offset < 0", "action": "dead_letter", "types": ["chess*"]}
    one = bench(ALL_TABLES, rules(rule))
    staged = one.stage(games(one, games=2, versions=1, records=5))
    assert CHESS not in staged.files
    assert staged.records[CHESS] == 0
    assert staged.records[POKER] == 5
    assert staged.dead.total() == 5
    assert found(staged, CHESS) == {"none": (5, 5)}
    assert found(staged, POKER) == {}


def test_several_broken_rules_make_one_letter_that_names_them(bench: MakeBench) -> None:
    one = bench(
        extra=rules(
            {"name": "first", "check": "_offset <> 2", "action": "dead_letter"},
            {"name": "told", "check": "_offset <> 2"},
            {"name": "second", "check": "_offset > 2", "action": "dead_letter"},
        )
    )
    staged = one.stage(games(one, games=1, versions=1, records=5))
    letters = one.rows(staged, "dead_letters").sort_by("offset").to_pylist()
    assert [x["offset"] for x in letters] == [0, 1, 2]
    assert "first" in letters[2]["error_message"]
    assert "second" in letters[2]["error_message"]
    assert "told" not in letters[2]["error_message"]
    assert found(staged, CHESS) == {"first": (5, 1), "told": (5, 1), "second": (5, 3)}


def test_a_rule_that_says_fail_keeps_rows_and_reports_where(bench: MakeBench) -> None:
    one = bench(extra=rules({"name": "f", "check": "_offset < 3", "action": "fail"}))
    staged = one.stage(games(one, games=1, versions=1, records=5))
    assert staged.rules[CHESS] == (RuleCount("f", Action.FAIL, 5, 2, "", ("wrapper", 0, 3)),)
    assert not staged.dead


def test_letters_that_are_sent_again_stay_letters_where_a_rule_says_fail(bench: MakeBench) -> None:
    one = bench(extra=rules({"name": "f", "check": "_offset < 3", "action": "fail"}))
    staged = one.stage(games(one, games=1, versions=1, records=5), lane="replay")
    assert staged.dead == {ErrorCode.EXPECTATION_FAILED: 2}
    assert staged.records[CHESS] == 3


def test_letters_land_once_the_rule_is_corrected(bench: MakeBench) -> None:
    def rule(most: int) -> str:
        return rules({"name": "r", "check": f"_offset < {most}", "action": "dead_letter"})

    one = bench(extra=rule(3))
    raw = games(one, games=1, versions=1, records=5)
    assert one.stage(raw).dead.total() == 2
    corrected = bench(extra=rule(100))
    corrected.registry = one.registry
    corrected.__post_init__()
    staged = corrected.stage(raw, lane="replay")
    assert not staged.dead
    assert staged.records[CHESS] == 5


def test_a_rule_waits_for_its_columns(bench: MakeBench) -> None:
    rule = {"name": "later", "check": "col_chess_game_1 is not null", "action": "dead_letter"}
    one = bench(extra=rules(rule))
    rounds = stream_rounds(GamesPlan(games=1, versions=2, records=5), registry=one.registry)
    first = one.stage(raw_records(next(rounds).arrow()))
    (count,) = first.rules[CHESS]
    assert (count.checked, count.violated) == (0, 0)
    assert "col_chess_game_1" in count.unfit
    assert first.records[CHESS] == 5
    # the second version brings the column, and records of both versions are judged
    both = one.stage(raw_records(next(rounds).arrow(), 5))
    assert found(both, CHESS) == {"later": (5, 0)}
    assert not both.rules[CHESS][0].unfit


def test_null_is_unknown_and_passes(bench: MakeBench) -> None:
    one = bench(extra=rules({"name": "r", "check": "col_chess_game_1 > 'a'"}))
    staged = one.stage(games(one, games=1, versions=2, records=5))
    assert found(staged, CHESS) == {"r": (10, 0)}


def test_one_table_for_several_types_is_held_to_each_type_s_rules(bench: MakeBench) -> None:
    one = bench(
        "{each: games}",
        rules({"name": "chess", "check": "_offset < 0", "types": ["chess_*"]}),
    )
    staged = one.stage(games(one, games=2, versions=1, records=5), tasks=1)
    assert found(staged, "games") == {"chess": (5, 5)}
    assert staged.records["games"] == 10


def test_partitioned_tables_are_held_to_rules_too(bench: MakeBench) -> None:
    one = bench(
        "{each: 'silver_{type}', partition_by: [_date, is_connection_stable]}",
        rules(
            {"name": "r", "check": "_date > '2020-01-01' and _offset > 0", "action": "dead_letter"}
        ),
    )
    staged = one.stage(games(one, games=1, versions=1, records=6))
    assert found(staged, CHESS) == {"r": (6, 1)}
    assert staged.records[CHESS] == 5
    assert sum(file.rows for file in staged.files[CHESS]) == 5


ROWS = {
    "type": "array",
    "items": {"type": "object", "properties": {"score": {"type": "integer"}}},
}


def test_a_record_of_several_rows_goes_whole(tmp_path: Path) -> None:
    text = f"""
name: games
source: {{type: delta, path: {tmp_path}/events, topic: wrapper}}
registry: {{path: {tmp_path}/schemas}}
payload: {{format: json, framing: confluent}}
tables: {{each: 'silver_{{topic}}'}}
lake: {{path: {tmp_path}}}
expectations:
  - {{name: positive, check: "score >= 0", action: dead_letter}}
"""
    one = Bench(tmp_path, ScratchRegistry(), load_text(text, environ={}).config)
    number = one.registry.register("wrapper-value", json.dumps(ROWS), format=Format.JSON)
    bodies = ['[{"score": 1}, {"score": -1}, {"score": -2}]', '[{"score": 3}, {"score": 4}]', "[]"]
    framed = [b"\0" + number.to_bytes(4, "big") + body.encode() for body in bodies]
    staged = one.stage([raw_batch(list(framed))])
    assert found(staged, "silver_wrapper") == {"positive": (5, 2)}
    assert one.rows(staged, "silver_wrapper")["score"].to_pylist() == [3, 4]
    (letter,) = one.rows(staged, "dead_letters").to_pylist()
    assert letter["value"] == framed[0]
    assert "score = -1" in letter["error_message"]
    assert staged.records["silver_wrapper"] + staged.dead.total() == staged.seen == 3


def test_values_in_a_letter_are_cut_and_escaped(bench: MakeBench) -> None:
    one = bench(
        extra=rules(
            {"name": "r", "check": "game_name || chr(27) = _topic", "action": "dead_letter"}
        )
    )
    staged = one.stage(games(one, games=1, versions=1, records=1))
    (letter,) = one.rows(staged, "dead_letters").to_pylist()
    assert letter["error_message"].isprintable()
    assert len(letter["error_message"]) <= 1000


LOG = TablePlan(
    "shop_orders_log",
    Role.LOG,
    '["shop","","orders"]',
    "unused",
    (
        Column("_op", pa.string()),
        Column("_unchanged", pa.list_(pa.string())),
        Column("amount", pa.int64()),
        Column("note", pa.string()),
    ),
)


def test_events_of_a_log_are_counted_unless_they_hold_no_row_or_no_such_value() -> None:
    expected = (
        Expectation(name="paid", check="amount > 0", tables=["shop_orders"]).rule(),
        Expectation(name="noted", check="note is not null", types=["shop.orders"]).rule(),
        Expectation(name="other", check="amount > 0", tables=["shop_users*"]).rule(),
        Expectation(name="unknown", check="nope > 0").rule(),
    )
    plan = TaskPlan(RecordsPlan(Format.AVRO, "none"), output=OutputPlan(expectations=expected))
    rows = pa.table(
        {
            "_op": ["insert", "update", "update", "delete", "truncate"],
            "_unchanged": pa.array([None, [], ["note"], None, []], pa.list_(pa.string())),
            "amount": pa.array([1, -1, -2, -3, None], pa.int64()),
            "note": pa.array(["x", None, None, None, None], pa.string()),
        }
    )
    raw = raw_batch([b""] * 5, 10)
    (counted,) = count_changes(LOG, rows, pa.Table.from_batches([raw]), plan)
    assert isinstance(counted, RulesCounted)
    assert counted.table == LOG.name
    by_rule = {count.rule: count for count in counted.counts}
    assert set(by_rule) == {"paid", "noted", "unknown"}
    assert (by_rule["paid"].checked, by_rule["paid"].violated) == (3, 2)
    assert by_rule["paid"].example == "wrapper/0/11"
    assert (by_rule["noted"].checked, by_rule["noted"].violated) == (2, 1)
    assert by_rule["unknown"].unfit
    assert list(unfit_rules(expected, LOG)) == ["unknown"]
    # a column that no event of the batch has is null in all of them
    (bare,) = count_changes(LOG, rows.drop_columns(["note"]), pa.Table.from_batches([raw]), plan)
    assert isinstance(bare, RulesCounted)
    again = {count.rule: count for count in bare.counts}
    assert (again["noted"].checked, again["noted"].violated) == (2, 2)


def test_patterns_name_tables_and_types() -> None:
    def fits(**patterns: list[str]) -> bool:
        rule = Expectation(name="r", check="a > 0", **patterns).rule()
        return rule.is_for(["silver_chess"], ["chess.v1"])

    assert fits()
    assert fits(tables=["silver_*"])
    assert fits(tables=["gold", "s?lver_chess"], types=["chess*"])
    assert not fits(tables=["silver"])
    assert not fits(tables=["silver_*"], types=["go"])
    assert not fits(types=["chess[.]v1"])
    assert not fits(types=["chessxv1"])
    assert type_spellings('["shop","","orders"]') == ('["shop","","orders"]', "shop.orders")
    assert type_spellings("[odd") == ("[odd",)


def test_counts_add_up_whatever_comes_first() -> None:
    first = RuleCount("r", Action.WARN, 5, 1, "", ("t", 1, 7))
    second = RuleCount("r", Action.WARN, 3, 2, "", ("t", 0, 9))
    assert first + second == second + first
    assert (first + second).first == ("t", 0, 9)
    assert RuleCount.of(json.loads(json.dumps(first.as_dict()))) == first
    assert (first + RuleCount("r", Action.WARN)).example == "t/1/7"


def test_without_rules_the_engine_is_not_even_loaded(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "name: games\nsource: {type: delta, path: ./in}\npayload: {format: json}\n"
        "tables: {each: t}\nlake: {path: ./lake}\nexpectations: []\n"
    )
    code = (
        "import sys\nfrom distributary.config.load import load\n"
        "import distributary.stage.land\n"
        f"load({str(file)!r})\nprint('duckdb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
