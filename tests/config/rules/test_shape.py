"""The section `shape` of the pipeline file: what it takes, or a problem at its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distributary.config.file.document import PipelineFileError, Problem
from distributary.config.load import load, load_text
from distributary.config.pipeline_config import PipelineConfig

FILE = """\
name: games
source: {type: delta, path: ./in}
payload: {format: json}
tables: {bronze: raw, each: 'silver_{topic}', unified: gold}
lake: {path: ./lake}
"""


def loaded(*entries: dict[str, Any], text: str = FILE) -> PipelineConfig:
    lines = "".join(f"  - {json.dumps(entry)}\n" for entry in entries)
    return load_text(f"{text}shape:\n{lines}").config


def problem(*entries: dict[str, Any], text: str = FILE) -> Problem:
    with pytest.raises(PipelineFileError) as caught:
        loaded(*entries, text=text)
    (found,) = caught.value.problems
    return found


def test_an_entry_is_a_rule_with_the_columns_of_its_expressions() -> None:
    entry = {
        "tables": "silver_*",
        "where": "payload_version > 1",
        "set": {"amount_eur": "amount * rate", "source": "'web'"},
        "drop": ["debug", "tmp_*"],
        "rename": {"old name": "new name"},
    }
    (shape,) = loaded(entry).shape
    rule = shape.rule()
    assert rule.where is not None
    assert rule.where.columns == (("payload_version",),)
    assert [e.columns for _, e in rule.set] == [(("amount",), ("rate",)), ()]
    assert (rule.drop, rule.rename) == (("debug", "tmp_*"), (("old name", "new name"),))
    assert rule.is_for(["silver_x"], ["x"])
    assert not rule.is_for(["other"], ["x"])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "now()",
            "current_date",
            "amount > current_timestamp",
            "today() > day",
            "ago(INTERVAL 1 d)",
        ),
        *("random()", "uuid()", "gen_random_uuid()", "nextval('s')", "setseed(0.1)"),
        *("getenv('HOME')", "current_setting('threads')", "version()"),
        *("read_text('/etc/passwd')", "(SELECT 1)", "a IN (SELECT b FROM c)", "*", "COLUMNS(*)"),
        *("a; DROP TABLE x", "a) FROM x; --", "a AS b", "", "  ", "$1", "?", "#1"),
        *("sum(a)", "row_number() OVER ()", "count(*)", "nofunction(a)", "a + ", "x" * 10_001),
        *("(" * 3000 + "a" + ")" * 3000, "getvariable('a')", "pg_sleep(1)", "txid_current()"),
    ],
)
def test_an_expression_that_may_give_another_value_is_refused(text: str) -> None:
    found = problem({"set": {"x": text}})
    assert (found.line, found.path) == (7, "shape[0].set.x")


def test_the_refusal_of_the_current_time_names_the_time_of_the_record() -> None:
    assert "use _timestamp, the time of the record" in problem({"where": "moment < now()"}).message


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"tables": "silver_*"}, "shape[0]"),
        ({"drop": ["a"], "keep": ["b"]}, "shape[0].keep"),
        ({"set": {"_a": "1"}}, "shape[0].set._a"),
        ({"rename": {"a": "_b"}}, "shape[0].rename.a"),
        ({"rename": {"a": "x", "b": "X"}}, "shape[0].rename"),
        ({"set": {"x": "1", "X": "2"}}, "shape[0].set"),
        ({"where": "1 = 1"}, "shape[0].where"),
        ({"drop": ["a"], "tables": ["gold"]}, "shape[0].tables"),
        ({"wher": "a > 1"}, "shape[0].wher"),
    ],
)
def test_what_an_entry_cannot_say(entry: dict[str, Any], path: str) -> None:
    assert problem(entry).path == path


def test_pipelines_that_cannot_be_shaped() -> None:
    only_bronze = FILE.replace(", each: 'silver_{topic}', unified: gold", "")
    assert "needs tables.each" in problem({"drop": ["a"]}, text=only_bronze).message
    changes = FILE.replace(
        "payload: {format: json}", "cdc: {format: debezium}\npayload: {format: json}"
    )
    changes = changes.replace("each: 'silver_{topic}', unified: gold", "each: 'silver_{table}'")
    assert "cannot be used with cdc" in problem({"drop": ["a"]}, text=changes).message


def test_commands_that_need_no_key_read_a_file_whose_key_is_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "people.yaml"
    file.write_text(
        """
name: people
source: {type: files, path: ./in, format: json}
tables: {each: people}
masking: {key: "${env:KEY_OF_MASKS}"}
shape: [{mask: {email: token}}]
lake: {path: ./lake}
"""
    )
    assert load(file, environ={}, needs=("lake",)).config.masking is not None
    short = {"KEY_OF_MASKS": "short"}
    with pytest.raises(PipelineFileError) as caught:
        load(file, environ=short)
    assert [problem.path for problem in caught.value.problems] == ["masking.key"]
