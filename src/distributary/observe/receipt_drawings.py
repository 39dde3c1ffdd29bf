"""What is drawn in a receipt, and how it looks: by day, by night, and on paper. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

_PARTS = ("written", "dead_lettered", "parked", "skipped")
_WIDTH = 1000.0
_LEAST = 4.0
"""One dead letter in a million records can still be seen."""
_BAR, _HEIGHT = 14, 70


def equation_drawing(totals: Mapping[str, int]) -> str:
    """One bar: where the records went."""
    counts = {name: max(totals[name], 0) for name in _PARTS}
    whole = sum(counts.values())
    if not whole:
        return ""
    wide = {name: max(_WIDTH * n / whole, _LEAST) for name, n in counts.items() if n}
    shrink = _WIDTH / sum(wide.values())
    bars, at = [], 0.0
    for name, width in wide.items():
        bars.append(
            f'<rect class="{name}" x="{at:.1f}" width="{width * shrink:.1f}" height="{_BAR}"/>'
        )
        at += width * shrink
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 10 10"><rect class="{name}" width="10" height="10"/>'
        f"</svg> {name.replace('dead_lettered', 'dead letters')} {counts[name]:,}</span>"
        for name in wide
    )
    size = f'viewBox="0 0 {_WIDTH:.0f} {_BAR}" preserveAspectRatio="none"'
    drawing = f'<svg class="bar" aria-hidden="true" {size}>{"".join(bars)}</svg>'
    return f"{drawing}<p>{keys}</p>"


def batches_drawing(counts: Sequence[int], labels: Sequence[str]) -> str:
    """One column for each batch, with a label to be read when it is pointed at."""
    most = max([*counts, 1])
    step = _WIDTH / max(len(counts), 20)
    columns = []
    for at, (count, label) in enumerate(zip(counts, labels, strict=True)):
        height = max(_HEIGHT * count / most, 1.0)
        columns.append(
            f'<rect class="written" x="{at * step:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{step * 0.85:.1f}" height="{height:.1f}">'
            f"<title>{html.escape(label)}</title></rect>"
        )
    size = f'viewBox="0 0 {_WIDTH:.0f} {_HEIGHT}" preserveAspectRatio="none"'
    name = f"records per batch, at most {most:,}"
    drawn = "".join(columns)
    return f'<svg class="batches" role="img" aria-label="{name}" {size}>{drawn}</svg>'


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --line: #d5dae0;
  --paper: #ffffff; --ok: #2f7fd1; --dead: #c93c37; --parked: #c98a00; --skipped: #8b949e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --dim: #9aa4ae; --line: #363c44;
  --paper: #14171a; --ok: #58a6ff; --dead: #ff7b72; --parked: #e3b341; --skipped: #6e7681; } }
@media print { :root { color-scheme: light; --ink: #000; --dim: #444; --line: #bbb;
  --paper: #fff; --ok: #2f7fd1; --dead: #c93c37; --parked: #c98a00; --skipped: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-top: 2px solid var(--line);
  padding-top: 1rem; overflow-wrap: anywhere; }
h3, caption { font-size: 1rem; font-weight: 600; text-align: left; margin: 1rem 0 .3rem; }
.state, small, dt, th { color: var(--dim); font-weight: 400; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; min-width: 46rem; font-size: .87rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .7rem .2rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; min-width: 5rem; }
th { white-space: nowrap; }
th.n, td.n { text-align: right; padding-right: 1.4rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.wrong { color: var(--dead); }
code { font: .87em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bar { display: block; width: 100%; height: 14px; border-radius: 3px; }
.batches { display: block; width: 100%; height: 70px; border-bottom: 1px solid var(--line); }
.key { margin-right: 1.2rem; white-space: nowrap; }
.key svg { width: .7em; height: .7em; }
.written { fill: var(--ok); } .dead_lettered { fill: var(--dead); }
.parked { fill: var(--parked); } .skipped { fill: var(--skipped); }
@media print { body { font-size: 9pt; } main { max-width: none; padding: 0; }
  .wide { overflow: visible; } table { min-width: 0; } thead { display: table-header-group; }
  tr { break-inside: avoid; } h2, h3, caption { break-after: avoid; } }
"""
