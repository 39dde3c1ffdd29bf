"""The part of `status` about expectations: one line a rule, and where it is broken."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from distributary.cli.output import Paper, styled
from distributary.cli.words import counted, cut, since
from distributary.observe.rule_counts import RuleStatus

_MOST_RULES = 20
_MOST_TABLES = 3
_COLOURS = {"warn": "yellow", "dead_letter": "yellow", "fail": "red"}


def draw_rules(paper: Paper, rules: Sequence[RuleStatus], now: datetime, *, label: int) -> None:
    """Rules that were broken first; nothing where there are no rules."""
    for number, rule in enumerate(rules[:_MOST_RULES]):
        first = "expectations" if not number else ""
        paper.line(
            styled(f"  {first:{label}}", "dim"),
            styled(rule.rule, "bold"),
            f" ({rule.action}): ",
            styled(_found(rule, now), _COLOURS.get(rule.action, "") if rule.violated else ""),
        )
        if rule.unfit_tables:
            _draw_unfit(paper, rule, label=label)
    if len(rules) > _MOST_RULES:
        paper.line(f"  {'':{label}}and {counted(len(rules) - _MOST_RULES, 'more rule')}")


def _found(rule: RuleStatus, now: datetime) -> str:
    tables = counted(rule.tables, "table")
    if not rule.checked:
        return "no row checked yet"
    if not rule.violated:
        return f"kept by {counted(rule.checked, 'row')} of {tables}"
    worst = ", ".join(f"{one.table} {one.violated:,}" for one in rule.violating[:_MOST_TABLES])
    more = rule.violating_tables - _MOST_TABLES
    text = f"broken by {rule.violated:,} of {counted(rule.checked, 'row')}: {worst}"
    text += f" and {counted(more, 'more table')}" if more > 0 else ""
    if rule.last_violated is not None:
        text += f"; last {since(rule.last_violated, now=now)}"
    example = rule.violating[0].example
    return f"{text}, such as {cut(example, 100)}" if example else text


def _draw_unfit(paper: Paper, rule: RuleStatus, *, label: int) -> None:
    one = rule.unfit[0]
    more = rule.unfit_tables - 1
    others = f" and {counted(more, 'other table')}" if more else ""
    text = f"not applied to {one.table}{others}: {cut(one.unfit, 200)}"
    paper.line(f"  {'':{label}}", styled(text, "yellow"))
