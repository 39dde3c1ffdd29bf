"""The numbers behind the metrics: written by one listener, read by whoever scrapes.

All changes of one event are made under one lock, and a scrape takes the same lock: nobody ever sees
half a batch. (The instruments of `prometheus_client` change one by one.)
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from distributary.observe.metrics_catalogue import CATALOGUE, Kind, Metric

BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Of the histograms, in seconds."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Spread:
    """What a histogram counts."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0


class Values(Collector):
    """Every series and its value."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._numbers: dict[Metric, dict[Labels, float]] = {m: {} for m in CATALOGUE}
        self._spreads: dict[Metric, dict[Labels, _Spread]] = {m: {} for m in CATALOGUE}

    def add(self, metric: Metric, *labels: str, amount: float = 0.0) -> None:
        """Count; an amount of 0 makes the series known, so that its first step is a step."""
        with self.lock:
            key = _key(metric, labels)
            self._numbers[metric][key] = self._numbers[metric].get(key, 0.0) + amount

    def add_all(self, labels: Labels, amounts: Iterable[tuple[Metric, float]]) -> None:
        """Count several metrics that have the same labels: there may be a thousand tables."""
        with self.lock:
            key: Labels | None = None
            for metric, amount in amounts:
                key = _key(metric, labels) if key is None else key
                numbers = self._numbers[metric]
                numbers[key] = numbers.get(key, 0.0) + amount

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """What a gauge says now."""
        with self.lock:
            self._numbers[metric][_key(metric, labels)] = value

    def raise_to(self, metric: Metric, *labels: str, value: float) -> None:
        """What a gauge says now, unless it says more already."""
        with self.lock:
            known = self._numbers[metric].get(_key(metric, labels), value)
            self.set(metric, *labels, value=max(known, value))

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """One more duration."""
        with self.lock:
            spread = self._spreads[metric].setdefault(_key(metric, labels), _Spread())
            spread.counts[bisect_left(BOUNDS, seconds)] += 1
            spread.sum += seconds

    def forget(self, metric: Metric, pipeline: str) -> None:
        """Drop the series of a pipeline, before those that are there now are set."""
        with self.lock:
            known = self._numbers[metric]
            for labels in [key for key in known if key[0] == pipeline]:
                del known[labels]

    def get(self, metric: Metric, *labels: str) -> float | None:
        """The value of a series; None if there is none."""
        with self.lock:
            return self._numbers[metric].get(_key(metric, labels))

    def collect(self) -> Iterable[Family]:
        """For `prometheus_client`."""
        with self.lock:
            return [family for metric in CATALOGUE for family in self._family(metric)]

    def _family(self, metric: Metric) -> Iterator[Family]:
        if metric.kind is Kind.HISTOGRAM:
            spreads = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, spread in self._spreads[metric].items():
                spreads.add_metric(labels, _cumulated(spread.counts), spread.sum)
            family: Family = spreads
        else:
            made = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            numbers = made(metric.name, metric.help, labels=metric.labels)
            for labels, value in self._numbers[metric].items():
                numbers.add_metric(labels, value)
            family = numbers
        if family.samples:
            yield family


def _key(metric: Metric, labels: Labels) -> Labels:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}")
    return tuple([label if label.isascii() else _encodable(label) for label in labels])


def _encodable(label: str) -> str:
    """A name from outside, fit for the wire: one that cannot be encoded would end every scrape."""
    return label.encode("utf-8", "backslashreplace").decode()


def _cumulated(counts: list[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
