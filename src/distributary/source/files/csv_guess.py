"""Guess the form of CSV files: their delimiter, and whether names come first."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from distributary.source.files.csv_files import Dialect

_DELIMITERS = (",", ";", "\t", "|")
_MOST_LINES = 200
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?")
_MOMENT = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([ T].*)?")


def guess_dialect(text: str, default: Dialect) -> Dialect:
    """Guess the form of a file from its beginning; return the default form without evidence.

    The delimiter is the one that splits most rows into the same number of values; if several do,
    the one with the most values. The first line names the columns unless one of its values cannot
    be a name.
    """
    # the last line may be cut off
    whole = text if text.endswith("\n") or "\n" not in text else text[: text.rindex("\n") + 1]
    best, best_score, rows = default, (0.0, 0), _rows(whole, default)
    for delimiter in dict.fromkeys((default.delimiter, *_DELIMITERS)):
        dialect = replace(default, delimiter=delimiter)
        cut = _rows(whole, dialect)
        score = _score(cut)
        if score > best_score:
            best, best_score, rows = dialect, score, cut
    return replace(best, header=_is_header(rows[0])) if rows else best


def _rows(text: str, dialect: Dialect) -> list[list[str]]:
    """Return the first rows of a text; those before an error if it is no CSV of this form."""
    reader = csv.reader(
        text.splitlines(keepends=True)[:_MOST_LINES],
        strict=True,
        delimiter=dialect.delimiter,
        quotechar=dialect.quote,
    )
    rows: list[list[str]] = []
    try:
        rows.extend(row for row in reader if row)
    except csv.Error:
        pass
    return rows


def _score(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Return the share of rows with the usual number of values, and that number; 0 for one."""
    if not rows:
        return 0.0, 0
    (values, count), *_ = Counter(map(len, rows)).most_common(1)
    return (count / len(rows), values) if values > 1 else (0.0, 0)


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a first row can be the names of columns."""
    texts = [text.strip() for text in row]
    values = any(_NUMBER.fullmatch(text) or _MOMENT.fullmatch(text) for text in texts)
    return all(texts) and len(set(texts)) == len(texts) and not values
