"""Tables of HTML, as a notebook shows pipelines, runs, batches, tables and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from distributary.model.names import one_line

LONGEST = 80
"""Characters of a value that a cell shows."""


def html_table(
    title: str, names: Sequence[str], rows: Iterable[Sequence[str]], more: str = ""
) -> str:
    """Return a table of HTML under a title; names and values come from strangers."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(f"<{tag}>{escape(one_line(value))}</{tag}>" for value in values)

    head = f"<thead><tr>{cells('th', names)}</tr></thead>" if names else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    foot = f"<p>{escape(one_line(more))}</p>" if more else ""
    return f"<p>{escape(one_line(title))}</p><table>{head}<tbody>{body}</tbody></table>{foot}"


def html_rows(
    title: str, names: Sequence[str], rows: Iterable[Mapping[str, object]], more: str = ""
) -> str:
    """Return rows of a table as HTML; nulls are empty cells, long values are cut."""
    shown = (["" if row[n] is None else str(row[n])[:LONGEST] for n in names] for row in rows)
    return html_table(title, names, shown, more)
