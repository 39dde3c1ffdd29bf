"""All suites, by name, in the order in which they run."""

from __future__ import annotations

from benchmarks import avro, changes, delta, freshness, kafka

SUITES = {
    suite.name: suite
    for suite in (delta.SUITE, kafka.SUITE, avro.SUITE, changes.SUITE, freshness.SUITE)
}
