"""The reference of metrics, read from their catalogue."""

from __future__ import annotations

from distributary.observe.metrics import CATALOGUE, Metric, MetricKind

_INTRODUCTION = """\
# Metrics

What `run --metrics` and `up --listen` serve at `/metrics`; what a number means, and the alert
rules that are shipped, is on the page about [metrics](../metrics.md).

"""
_SERIES = """
## Series of the histograms

"""


def page() -> str:
    """The page as Markdown."""
    histograms = [series(metric) for metric in CATALOGUE if metric.kind is MetricKind.HISTOGRAM]
    lines = [", ".join(f"`{name}`" for name in names) for names in histograms]
    return _INTRODUCTION + table() + _SERIES + "\n".join(f"- {line}" for line in lines) + "\n"


def table() -> str:
    """All metrics, as Markdown."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def series(metric: Metric) -> tuple[str, ...]:
    """The names under which a metric's samples are served."""
    if metric.kind is not MetricKind.HISTOGRAM:
        return (metric.name,)
    return tuple(metric.name + ending for ending in ("_bucket", "_sum", "_count"))
