"""One case in a process of its own: `python -m benchmarks.case SUITE CASE ORDER`, JSON out."""

from __future__ import annotations

import json
import sys

from benchmarks.order import Order
from benchmarks.suites import SUITES
from benchmarks.usage import Usage


def main() -> None:
    suite, case, order = sys.argv[1:]
    usage = Usage()
    figures = SUITES[suite].cases[case](Order.from_json(order))
    print(json.dumps({**figures, **usage.stop()}))


if __name__ == "__main__":
    main()
