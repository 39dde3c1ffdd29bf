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
    sizes,
    skew,
    startup,
    wide,
)

SUITES = {
    suite.name: suite
    for suite in (
        kafka.SUITE,
        wide.SUITE,
        avro.SUITE,
        changes.SUITE,
        skew.SUITE,
        freshness.SUITE,
        evolution.SUITE,
        startup.SUITE,
        age.SUITE,
        cluster.SUITE,
        sizes.SUITE,
        events.SUITE,
        delta.SUITE,
    )
}
