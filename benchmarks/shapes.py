"""Suite `shape`: what a filter and three expressions on each of 200 tables add to a batch.

The same records go through two pipelines by turns, in one process and without Spark or a broker.
"""

from __future__ import annotations

from benchmarks.turns import suite_of_section

_SHAPE = """\
shape:
  - where: "quantity > 0"
    set: {amount: "price * quantity", email: "lower(email)", country: "upper(country)"}
"""

SUITE = suite_of_section("shape", _SHAPE, called="shaped")
