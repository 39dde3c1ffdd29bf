"""The page of a receipt: one file, no script that runs, no address outside. Pure.

Every text comes from somebody else: it gets into the page through `_text` only.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributary.observe.receipt_drawings import STYLE, batches_drawing, equation_drawing

MARK = "<!doctype html>\n<!-- a receipt of distributary -->\n"
"""How every receipt begins, and nothing else does."""
MOST_CHANGES = 2000
"""Changes of schemas that are shown, the newest; all are in the facts."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_LONGEST = 400
_Facts = Mapping[str, Any]


def page(facts: _Facts, about: _Facts, *, facts_text: str, about_text: str) -> str:
    """The page; the last two are lines of JSON in which no element can end or begin."""
    moments = {each["name"]: each for each in about["pipelines"]}
    pipelines = [(each, moments[each["name"]]) for each in facts["pipelines"]]
    parts = [
        f'{MARK}<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>Receipt of {_text(facts['lake'])}, {_moment(about['written_at'])}</title>",
        f"<style>{STYLE}</style></head><body><main>",
        _heading(facts, about, pipelines),
        *(_pipeline(each, moment) for each, moment in pipelines),
        _fingerprint(about),
        "</main>",
        f'<script type="application/json" id="about">{about_text}</script>',
        f'<script type="application/json" id="facts">{facts_text}</script>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _heading(facts: _Facts, about: _Facts, pipelines: Sequence[tuple[_Facts, _Facts]]) -> str:
    said = [
        ("lake", _text(facts["lake"])),
        ("written", _moment(about["written_at"])),
        ("versions", ", ".join(f"{_text(k)} {_text(v)}" for k, v in about["versions"].items())),
    ]
    rows = [
        (
            each["name"],
            moment["state"],
            each["equation"],
            "yes" if each["balanced"] else "NO",
            len(each["tables"]),
            each["dead_letters"]["by_status"].get("open", 0),
            len(each["parked"]),
        )
        for each, moment in pipelines
    ]
    headers = ("pipeline", "state", "records", "adds up", "#tables", "#open letters", "#parked")
    empty = "<p>No pipeline has settled a batch in this lake yet.</p>"
    listing = _table("Pipelines", headers, rows) if rows else empty
    return f"<header><h1>Receipt</h1>{_list(said)}</header>{listing}"


def _pipeline(each: _Facts, moment: _Facts) -> str:
    parts = [
        f"<section><h2>{_text(each['name'])} "
        f'<span class="state">{_text(moment["state"])}</span></h2>',
        _equation(each),
        _list(_words(each, moment)),
        _batches(each["batches"]),
        _tables(each["tables"]),
        _parked(each["parked"]),
        _letters(each["dead_letters"]),
        _rules(each["expectations"]),
        _schemas(each["schemas"]),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _equation(each: _Facts) -> str:
    wrong = "" if each["balanced"] else ' class="wrong"'
    remark = "" if each["balanced"] else " — this does not add up"
    words = f"<p{wrong}><strong>{_text(each['equation'])}</strong>{remark}</p>"
    return words + equation_drawing(each["totals"])


def _words(each: _Facts, moment: _Facts) -> list[tuple[str, str]]:
    settled = _moment(each["as_of"]) if each["as_of"] else "none yet"
    said = [("last batch", settled), ("lag", _text(moment["lag_in_words"]))]
    if each["lag_seconds"] is not None:
        said.append(("newest record", f"was {each['lag_seconds']:,.1f} s old when it was read"))
    said.append(("rows written", f"{_number(each['rows'])}, dead letters not counted"))
    if each["changes"]:
        kinds = (f"{_text(kind)} {_number(count)}" for kind, count in each["changes"].items())
        said.append(("changes", ", ".join(kinds)))
    if each["failure"]:
        what = f"{each['failure'].get('code')}: {each['failure'].get('what')}"
        said.append(("failed", f'<span class="wrong">{_text(what)}</span>'))
    said += [("file", _text(each["file"] or "-")), ("checkpoint", _text(each["checkpoint"] or "-"))]
    if moment["settled_meanwhile"]:
        note = "A batch was settled while this was read: tables may hold more than the equation."
        said.append(("note", note))
    return said


def _batches(batches: Sequence[_Facts]) -> str:
    if not batches:
        return ""
    first, last = batches[0], batches[-1]
    span = f"batch {first['batch']} to {last['batch']}, {_moment(first['finished_at'])}"
    span += (
        f" to {_moment(last['finished_at'])}; at most {_number(max(b['read'] for b in batches))}"
    )
    labels = [
        f"batch {b['batch']}: {_number(b['read'])} read, {_moment(b['finished_at'])}"
        for b in batches
    ]
    drawing = batches_drawing([b["read"] for b in batches], labels)
    return f"<h3>Records per batch</h3>{drawing}<p><small>{span}</small></p>"


def _tables(tables: Sequence[_Facts]) -> str:
    headers = ("table", "kind", "of", "health", "#rows", "#columns", "#batches", "last commit")
    rows = (
        (
            t["table"],
            t["role"].replace("_", " "),
            t["type"],
            t["health"],
            t["rows"],
            t["columns"],
            t["batches"],
            _moment(t["last_commit"]),
        )
        for t in tables
    )
    return _table(f"Tables ({_number(len(tables))})", headers, rows) if tables else ""


def _parked(parked: Sequence[_Facts]) -> str:
    headers = ("table", "#records", "#batches", "since", "why")
    rows = (
        (p["table"], p["records"], p["batches"], _moment(p["since"]), p["error"]) for p in parked
    )
    return _table("Parked tables", headers, rows) if parked else "<p>No table is parked.</p>"


def _letters(letters: _Facts) -> str:
    counts = ", ".join(f"{_number(n)} {_text(name)}" for name, n in letters["by_status"].items())
    headers = ("reason", "#open", "first seen", "last seen", "types")
    rows = (
        (r["code"], r["count"], _moment(r["first_seen"]), _moment(r["last_seen"]), _types(r))
        for r in letters["reasons"]
    )
    told = f"<p>Dead letters: {counts or 'none'}.</p>"
    return told + (_table("Open dead letters", headers, rows) if letters["reasons"] else "")


def _types(reason: _Facts) -> str:
    named = [f"{name or '(unknown)'} {count:,}" for name, count in reason["types"].items()]
    rest = f" and {len(named) - 10:,} more" if len(named) > 10 else ""
    return ", ".join(named[:10]) + rest


def _rules(rules: Sequence[_Facts]) -> str:
    headers = ("rule", "action", "#checked", "#broken", "#tables", "#not applied to", "last broken")
    rows = (
        (
            r["rule"],
            r["action"],
            r["checked"],
            r["violated"],
            r["tables"],
            r["unfit_tables"],
            _moment(r["last_violated"]),
        )
        for r in rules
    )
    return _table("Expectations", headers, rows) if rules else ""


def _schemas(changes: Sequence[_Facts]) -> str:
    if not changes:
        return "<p>No schema has been met yet.</p>"
    headers = ("when", "#batch", "table", "schema", "change")
    newest = list(reversed(changes[-MOST_CHANGES:]))
    rows = ((_moment(c["at"]), c["batch"], c["table"], c["schema"], c["text"]) for c in newest)
    older = len(changes) - len(newest)
    rest = f"<p>{_number(older)} older ones are in the facts of this page.</p>" if older else ""
    return _table(f"Changes of schemas ({_number(len(changes))})", headers, rows) + rest


def _fingerprint(about: _Facts) -> str:
    return (
        f"<footer><h2>Facts</h2><p>SHA-256 <code>{_text(about['sha256'])}</code></p>"
        "<p><small>It is taken of the line of JSON in the element <code>facts</code> of this file, "
        "which holds everything above but states, lag in words, versions and the time of writing. "
        "Two receipts with the same one tell the same. It is no signature.</small></p></footer>"
    )


def _table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Texts and numbers under headers; a `#` before a header says that numbers are below it."""
    numeric = [header.startswith("#") for header in headers]
    classes = ['<{} class="n">' if each else "<{}>" for each in numeric]
    top = "".join(
        f"{open.format('th')}{_text(header.lstrip('#'))}</th>"
        for open, header in zip(classes, headers, strict=True)
    )
    starts = [open.format("td") for open in classes]
    lines = (
        "".join(f"{start}{_cell(c)}</td>" for start, c in zip(starts, row, strict=True))
        for row in rows
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<caption>{_text(caption)}</caption><thead><tr>{top}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _list(said: Iterable[tuple[str, str]]) -> str:
    """Names and what is to be said of them, that being HTML already."""
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{what}</dd>' for name, what in said)}</dl>"


def _cell(value: object) -> str:
    return _text(value) if isinstance(value, str) else _number(value)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _moment(value: str | None) -> str:
    """`2026-11-15 12:00:30 UTC` of a time in ISO 8601 and UTC."""
    return f"{_text(value[:19].replace('T', ' '))} UTC" if value else "-"


def _text(value: object) -> str:
    """A text from anywhere: cut, nothing in it is markup, and what cannot be seen is spelled."""
    text = str(value)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _spelled(c) for c in text)
    return html.escape(text, quote=True)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
