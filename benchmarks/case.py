"""One case in a process of its own: `python -m benchmarks.case SUITE CASE ORDER`, JSON out."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.memory import Memory
from benchmarks.order import Order
from benchmarks.suites import SUITES


def main() -> None:
    suite, case, order = sys.argv[1:]
    memory = Memory()
    cpu = time.process_time()
    figures = SUITES[suite].cases[case](Order.from_json(order))
    print(json.dumps({**figures, "cpu": round(time.process_time() - cpu, 2), **memory.stop()}))


if __name__ == "__main__":
    main()
