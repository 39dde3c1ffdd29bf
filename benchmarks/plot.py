"""The plot of a run: rows a second against the number of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_LINES = {
    "noop": ("Spark's scan to noop (floor)", "#b8bec8", "--"),
    "floor": ("Spark's scan into Arrow (floor)", "#8a93a3", "--"),
    "direct": ("Distributary", "#0b6e99", "-"),
    "spark": ("Distributary, one Spark write per table", "#7fb3c8", "-"),
    "foreachbatch": ("foreachBatch, thread pool, no decoding", "#d1603d", "-"),
    "queries": ("one query per type, no decoding", "#a23b72", "-"),
}
_TITLES = {"kafka": "from Kafka, four versions in flight", "wide": "messages of 2,000 bytes"}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """One panel for each suite that varies the number of tables; nothing where none does."""
    by_suite = {suite: [row for row in found["rows"] if row["suite"] == suite] for suite in _TITLES}
    shown = {suite: rows for suite, rows in by_suite.items() if rows}
    if not shown:
        return
    mpl.use("agg")
    figure, axes = plt.subplots(
        1, len(shown), figsize=(6.5 * len(shown), 4.4), squeeze=False, layout="constrained"
    )
    for axis, (suite, rows) in zip(axes[0], shown.items(), strict=True):
        _panel(axis, rows)
        axis.set_title(_TITLES[suite], fontsize=11)
    axes[0][0].set_ylabel("records a second")
    figure.suptitle(f"{found['machine']}, {found['date'][:10]}, {found['commit']}", fontsize=9)
    figure.savefig(path, dpi=144)
    plt.close(figure)


def _panel(axis: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for case, (label, colour, style) in _LINES.items():
        points = sorted(
            (row["tables"], row["rows_per_second"]) for row in rows if row["case"] == case
        )
        if points:
            axis.plot(
                *zip(*points, strict=True), style, color=colour, label=label, marker="o", ms=4
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("tables")
    axis.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    axis.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    axis.grid(visible=True, which="major", color="#e6e8ec")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
