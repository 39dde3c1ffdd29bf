"""The section `aggregates`: what is understood, and what is refused with its place."""

import pytest

from distributary.config.file.document import PipelineFileError
from distributary.config.load import load_text
from distributary.model.rules.aggregate_rule import AggregateFunction, AggregateRule

FILE = """
name: games
source: {type: delta, path: /data/events, topic: games}
payload: {format: json}
tables: {each: "silver_{topic}", bronze: raw}
lake: {path: /data/lake}
"""


def rule(entry: str) -> AggregateRule:
    config = load_text(f"{FILE}aggregates: [{entry}]\n", file="p.yaml", environ={}).config
    return config.aggregates[0].rule()


def problem(entry: str, file: str = FILE) -> tuple[str, str]:
    with pytest.raises(PipelineFileError) as caught:
        load_text(f"{file}aggregates: [{entry}]\n", file="p.yaml", environ={})
    (found,) = caught.value.problems
    return found.path, found.message


def test_groups_are_columns_or_names_with_expressions() -> None:
    of_list = rule(
        "{name: 'gold_{type}', group_by: [player, {day: \"date_trunc('day', seen)\"}], "
        "columns: {games: count( * ), most: MAX(score + 1)}}"
    )
    of_mapping = rule(
        "{name: 'gold_{type}', group_by: {player: player, day: \"date_trunc('day', seen)\"}, "
        "columns: {games: count( * ), most: MAX(score + 1)}}"
    )
    assert of_list == of_mapping
    assert [name for name, _ in of_list.group_by] == ["player", "day"]
    games, most = of_list.columns
    assert (games.function, games.expression) == (AggregateFunction.COUNT, None)
    assert most.expression is not None
    assert (most.function, most.expression.columns) == (AggregateFunction.MAX, (("score",),))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("sum(a) + (b)", "nothing else"),
        ("sum(DISTINCT a)", "expression in SQL"),
        ("sum(a) FILTER (WHERE b)", "expression in SQL"),
        ("count(a) OVER ()", "expression in SQL"),
        ("median(a)", "count, sum, min, max, avg"),
        ("sum(sum(a))", "many"),
        ("min(a, b)", "one argument"),
        ("count()", "empty"),
        ("sum(*)", "star"),
        ("sum(random())", "random"),
        ("max(now())", "current time"),
        ("sum((SELECT 1))", "subquery"),
        ("sum(a -- )", "expression in SQL"),
    ],
)
def test_a_column_is_one_call_that_gives_the_same_each_time(call: str, words: str) -> None:
    path, message = problem(f"{{name: 'gold_{{type}}', group_by: [a], columns: {{x: '{call}'}}}}")
    assert path == "aggregates[0].columns.x"
    assert words in message


@pytest.mark.parametrize(
    ("entry", "path", "words"),
    [
        ("name: gold, group_by: [a], columns: {x: count(*)}", "name", "{type} or {table}"),
        ("name: 'g_{type}', group_by: [a + b], columns: {x: count(*)}", "group_by", "name"),
        ("name: 'g_{type}', group_by: [], columns: {x: count(*)}", "group_by", ""),
        ("name: 'g_{type}', group_by: [a], columns: {}", "columns", ""),
        ("name: 'g_{type}', group_by: [a], columns: {A: count(*)}", "columns", "two columns"),
        ("name: 'g_{typ}', group_by: [a], columns: {x: count(*)}", "name", "placeholders"),
        ("name: '../{type}', group_by: [a], columns: {x: count(*)}", "name", "letters"),
        ("tables: [raw], name: g, group_by: [a], columns: {x: count(*)}", "tables", "per type"),
        ("tables: [s], name: raw, group_by: [a], columns: {x: count(*)}", "name", "another table"),
        ("name: 'g_{type}', group_by: {_a: b}, columns: {x: count(*)}", "group_by._a", "letter"),
    ],
)
def test_problems_have_their_place(entry: str, path: str, words: str) -> None:
    found, message = problem(f"{{{entry}}}")
    assert found == f"aggregates[0].{path}"
    assert words in message


def test_only_delta_tables_are_followed() -> None:
    file = FILE.replace("bronze: raw", "bronze: raw, format: parquet")
    entry = "{name: 'g_{type}', group_by: [a], columns: {x: count(*)}}"
    assert problem(entry, file)[0] == "tables.format"
