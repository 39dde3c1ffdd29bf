"""Rules in the pipeline file: one harmless expression each, or a problem at its line."""

from __future__ import annotations

import pytest
from pydantic_core import PydanticCustomError

from distributary.config.file.document import PipelineFileError, Problem
from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.expressions import columns_of, valid_expression
from distributary.errors import ErrorCode
from distributary.model.rules.expectation import Action

FILE = """\
name: games
source: {type: delta, path: ./in}
payload: {format: json}
tables: {bronze: raw, each: 'silver_{topic}', unified: gold}
lake: {path: ./lake}
"""
CHANGES = """\
name: shop
source: {type: files, path: ./in, format: avro}
cdc: {format: datastream}
tables: {each: '{schema}_{table}'}
lake: {path: ./lake}
"""


def load(rules: str, file: str = FILE) -> PipelineConfig:
    return load_text(f"{file}expectations:\n{rules}", file="p.yaml", environ={}).config


def problems(rules: str, file: str = FILE) -> list[Problem]:
    with pytest.raises(PipelineFileError) as caught:
        load(rules, file)
    return list(caught.value.problems)


def test_rules_are_told_to_tasks_with_the_columns_they_name() -> None:
    config = load(
        '  - {name: a, check: "score >= 0 and who.name <> \'x\'", action: fail, tables: "s_*, t"}\n'
        "  - name: b\n    check: |\n      score > 0 -- more than nothing\n      or score is null\n"
    )
    first, second = (one.rule() for one in config.expectations)
    assert (first.name, first.action) == ("a", Action.FAIL)
    assert first.columns == (("score",), ("who", "name"))
    assert first.tables == ("s_*", "t")
    assert (second.action, second.tables, second.types) == (Action.WARN, (), ())
    assert second.columns == (("score",),)


@pytest.mark.parametrize(
    "check",
    [
        "a > now() - interval 3 day",
        "a between 1 and 2 and b in ('x', 'y') and c not like '%z'",
        "case when a > 0 then b is not null else true end",
        "try_cast(a as date) is not null",
        "len(list_filter(a, lambda x: x.price < b)) = 0",
        "nullif(trim(a), '') is not null",
        "list_sum(a) = b",
        'lower("A b") = c',
        "a::double / 2 > 1",
        "extract(year from a) > 2000",
    ],
)
def test_an_expression_about_one_row_is_taken(check: str) -> None:
    columns = columns_of(check)
    assert columns
    assert ("x",) not in columns
    assert ("x", "price") not in columns


@pytest.mark.parametrize(
    "check",
    [
        *("a >", "a > 1; drop table x", "a) from t where (a", "a), (b", "select 1", "from t"),
        *("(select 1) = a", "a in (select b)", "exists(select 1)", "a = any(select 1)"),
        *("sum(a) > 1", "count(*) > a", "row_number() over () > a", "grouping(a) = 1"),
        *("read_text(a) = ''", "read_csv(a) = ''", "getenv(a) = ''", "glob(a) = ''"),
        *("random() > a", "nextval(a) = 1", "sleep_ms(a) is null", "current_setting(a) = ''"),
        *("a = ?", "a = $1", "#1 = a", "columns(*) > a", "*", "unnest(a) = 1", "pg_sleep(a)"),
        *("true", "1 = 1", "current_date > now()", "()", "uper(a) = 'A'", "a order by a"),
        *("(" * 3000 + "a" + ")" * 3000, "not " * 2000 + "a", "a + " * 2000 + "1 > 0"),
    ],
)
def test_anything_else_is_refused(check: str) -> None:
    with pytest.raises(PydanticCustomError):
        valid_expression(check, repeatable=False, constant=False)


def test_every_problem_has_its_place_and_none_repeats_the_text() -> None:
    found = problems(
        "  - {name: a, check: \"uper(s3cret) = 'hush'\"}\n"
        "  - {name: b, check: \"score > 'hush' ''\"}\n"
        "  - {name: c, chek: score > 0}\n"
        "  - {name: d, check: score > 0, action: drop}\n"
        "  - {name: e, check: ''}\n"
        '  - {name: "1 2", check: score > 0}\n'
    )
    assert [(p.line, p.path, p.code) for p in found] == [
        (7, "expectations[0].check", ErrorCode.CONFIG_INVALID),
        (8, "expectations[1].check", ErrorCode.CONFIG_INVALID),
        (9, "expectations[2].chek", ErrorCode.CONFIG_UNKNOWN_KEY),
        (10, "expectations[3].action", ErrorCode.CONFIG_INVALID),
        (11, "expectations[4].check", ErrorCode.CONFIG_INVALID),
        (12, "expectations[5].name", ErrorCode.CONFIG_INVALID),
    ]
    assert found[0].suggestion == "upper"
    assert not any("hush" in str(problem) or "s3cret" in str(problem) for problem in found)


@pytest.mark.parametrize(
    ("rules", "file", "path"),
    [
        ("  - {name: a, check: x > 0, tables: [gold]}", FILE, "expectations[0].tables"),
        ("  - {name: a, check: x > 0, tables: [raw]}", FILE, "expectations[0].tables"),
        (
            "  - {name: a, check: x > 0}\n  - {name: a, check: x > 1}",
            FILE,
            "expectations[1].name",
        ),
        (
            "  - {name: a, check: x > 0}",
            FILE.replace("each: 'silver_{topic}', ", ""),
            "expectations",
        ),
        ("  - {name: a, check: x > 0, action: dead_letter}", CHANGES, "expectations[0].action"),
    ],
)
def test_what_rules_cannot_ask_for_is_refused(rules: str, file: str, path: str) -> None:
    assert [problem.path for problem in problems(rules, file)] == [path]


@pytest.mark.parametrize("action", ["warn", "fail"])
def test_change_data_may_be_warned_about_and_refused(action: str) -> None:
    config = load(f"  - {{name: a, check: x > 0, action: {action}}}", CHANGES)
    assert config.expectations[0].action == action
