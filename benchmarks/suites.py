"""All suites, by name, in the order in which they run."""

from __future__ import annotations

from benchmarks import (
    age,
    avro,
    changes,
    cluster,
    counts,
    declarative,
    delta,
    events,
    evolution,
    exchange,
    freshness,
    json_orders,
    kafka,
    reader,
    shapes,
    sizes,
    skew,
    startup,
    upkeep,
    upserts,
    web_requests,
    wide,
)

SUITES = {
    suite.name: suite
    for suite in (
        kafka.SUITE,
        reader.SUITE,
        wide.SUITE,
        avro.SUITE,
        json_orders.SUITE,
        json_orders.TYPES_SUITE,
        json_orders.MANY_SUITE,
        web_requests.SUITE,
        declarative.SUITE,
        changes.SUITE,
        skew.SUITE,
        freshness.SUITE,
        freshness.TRIGGER_SUITE,
        evolution.SUITE,
        startup.SUITE,
        age.SUITE,
        age.LEDGER_SUITE,
        upkeep.SUITE,
        shapes.SUITE,
        counts.SUITE,
        counts.SIZE_SUITE,
        upserts.SUITE,
        cluster.SUITE,
        cluster.APART_SUITE,
        cluster.APART_CHANGES_SUITE,
        sizes.SUITE,
        exchange.SUITE,
        events.SUITE,
        delta.SUITE,
    )
}
