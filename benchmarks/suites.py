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
        sizes.SUITE,
        wide.SUITE,
        delta.SUITE,
    )
}
