"""The reference of metrics, read from their catalogue."""

from __future__ import annotations

from distributary.observe.metrics import CATALOGUE, reference

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
    histograms = [metric for metric in CATALOGUE if len(metric.series) > 1]
    lines = [", ".join(f"`{name}`" for name in metric.series) for metric in histograms]
    return _INTRODUCTION + reference() + _SERIES + "\n".join(f"- {line}" for line in lines) + "\n"
