"""Rules of `expectations`, evaluated over rows: one verdict for each row and rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.config.rules.expressions import enclosed, is_moment
from distributary.model.cache import Cache
from distributary.model.names import printable
from distributary.model.rules.expectation import Rule
from distributary.model.table import Column
from distributary.shape.evaluation import ENGINE, Evaluation, as_numpy, engine_words

Flags = npt.NDArray[np.bool_]
_MOST_KNOWN = 2_000


class Verdict(NamedTuple):
    """The result of a rule for rows."""

    broken: Flags
    """Rows that break the rule, including those for which it could not be evaluated."""
    failed: Flags
    """Rows for which the rule could not be evaluated, for instance after a failed cast or an
    overflow."""


class Checks:
    """The rules that fit a table, ready to be evaluated."""

    def __init__(self, rules: Sequence[Rule], columns: Sequence[Column]) -> None:
        self.unfit: dict[str, str] = {}
        """The rules that cannot be evaluated, with the reasons."""
        by_name = {column.name.lower(): column for column in columns}
        self.rules = tuple(self._fitting(rules, by_name))
        self.schema = _schema(self.rules, by_name)
        """The columns that the rules use."""
        self._evaluation = Evaluation(self.schema, [_guarded(r) for r in self.rules], as_numpy)

    def __call__(self, rows: pa.Table) -> list[Verdict]:
        """Return each rule's verdict on rows with the columns of `schema`."""
        names = [f"v{number}" for number in range(len(self.rules))]

        def failed(count: int) -> dict[str, Any]:
            return dict.fromkeys(names, np.ma.array(np.zeros(count, np.bool_), mask=True))

        answers = self._evaluation.halving(rows.select(self.schema.names).cast(self.schema), failed)
        parts = [_verdicts(answer, names) for answer in answers]
        if sum(len(verdicts[0].broken) for verdicts in parts) != rows.num_rows:
            raise ValueError(f"not as many answers as rows ({rows.num_rows})")
        if len(parts) == 1:
            return parts[0]
        by_rule = zip(*parts, strict=True)
        return [Verdict(*map(np.concatenate, zip(*mine, strict=True))) for mine in by_rule]

    def _fitting(self, rules: Sequence[Rule], by_name: dict[str, Column]) -> list[Rule]:
        """Return the rules that can be evaluated; record the reasons for the others in `unfit`."""
        missing = {rule.name: missing_column(rule.columns, by_name) for rule in rules}
        complete = [rule for rule in rules if not missing[rule.name]]
        self.unfit = {name: why for name, why in missing.items() if why}
        if len(complete) > 1 and not self._unusable(complete, by_name):
            return complete
        self.unfit |= {r.name: why for r in complete if (why := self._unusable([r], by_name))}
        return [rule for rule in complete if rule.name not in self.unfit]

    @staticmethod
    def _unusable(rules: Sequence[Rule], by_name: dict[str, Column]) -> str:
        """Return the engine's error for these rules; empty if there is none."""
        import duckdb

        plain = [enclosed(rule.check) for rule in rules]
        try:
            types = ENGINE.types(_schema(rules, by_name), [*plain, *map(_guarded, rules)])
        except duckdb.FatalException as error:
            ENGINE.reset()
            return engine_words(error)
        except duckdb.Error as error:
            return engine_words(error)
        other = next((t for t in types[: len(rules)] if t != "BOOLEAN"), "")
        return f"gives {printable(other)}, not true or false" if other else ""


def _guarded(rule: Rule) -> str:
    """Return SQL that gives true for true or unknown, false for false, and null for an error."""
    return f"TRY(coalesce({enclosed(rule.check)}, true))"


def _verdicts(answers: dict[str, Any], names: Sequence[str]) -> list[Verdict]:
    return [_verdict(answers[name]) for name in names]


def _verdict(answer: Any) -> Verdict:
    failed = np.ma.getmaskarray(answer)
    broken = ~np.ma.filled(answer, False).astype(np.bool_)
    return Verdict(broken, failed)


def _schema(rules: Sequence[Rule], by_name: dict[str, Column]) -> pa.Schema:
    """Return the table's columns that some rules name."""
    named = (by_name.get(names[0].lower()) for rule in rules for names in rule.columns)
    used = dict.fromkeys(column for column in named if column is not None)
    return pa.schema([pa.field(column.name, column.type) for column in used])


def missing_column(columns: Sequence[tuple[str, ...]], by_name: dict[str, Column]) -> str:
    """Return the column or field that an expression names and a table lacks.

    Empty if none is missing.
    """
    for names in columns:
        column = by_name.get(names[0].lower())
        if column is None:
            if is_moment(names):
                continue
            return f"no column {printable(names[0])}"
        here = column.type
        for name in names[1:]:
            if not pa.types.is_struct(here):
                break
            inside = {field.name.lower(): field.type for field in here}
            if name.lower() not in inside:
                return f"no field {printable('.'.join(names))}"
            here = inside[name.lower()]
    return ""


_KNOWN: Cache[Checks] = Cache(_MOST_KNOWN)


def checks_of(rules: tuple[Rule, ...], columns: Sequence[Column]) -> Checks:
    """Return the checks for a table with these columns; tables with equal columns share them."""
    wanted = {names[0].lower() for rule in rules for names in rule.columns}
    used = tuple(column for column in columns if column.name.lower() in wanted)
    key = (rules, tuple((column.name, column.type) for column in used))
    return _KNOWN.get(key, lambda: Checks(rules, used))
