"""All suites, by name, in the order in which they run."""

from __future__ import annotations

from benchmarks import (
    age,
    avro,
    changes,
    cluster,
    delta,
    events,
    evolution,
    freshness,
    kafka,
    startup,
    wide,
)

SUITES = {
    suite.name: suite
    for suite in (
        kafka.SUITE,
        avro.SUITE,
        changes.SUITE,
        events.SUITE,
        freshness.SUITE,
        evolution.SUITE,
        startup.SUITE,
        age.SUITE,
        cluster.SUITE,
        wide.SUITE,
        delta.SUITE,
    )
}
