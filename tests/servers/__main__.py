"""`make takeover`: servers that take over from each other, and a table of what differs then.

python -m tests.servers --kinds mariadb,postgres --rows 20000 --changes 25000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from distributary_lab.services.services import Services
from tests.servers.scenarios import KINDS, Play, Size
from tests.services.debezium import Debezium

_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the scenarios and print a line for each step; return 1 if anything differs."""
    asked = _parse(arguments)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="servers-") as place, ExitStack() as stack:
        root = Path(asked.keep or place)
        services = stack.enter_context(Services(root / "services"))
        debezium = stack.enter_context(Debezium(root / "connect", kafka=services.kafka))
        print(f"{'database':9} {'step':36} {'rows':>9} {'events':>10} {'differ':>7} {'asked':>6}")
        for kind in asked.kinds:
            with ExitStack() as servers:
                size = Size(asked.rows, asked.changes, asked.writers, asked.batch, asked.steps)
                play = Play(kind, services, debezium, root / kind, servers, size)
                for report in play.play():
                    wrong += len(report.differences)
                    print(
                        f"{kind:9} {report.step:36} {report.rows:9,} {report.events:10,}"
                        f" {len(report.differences):7,} {report.answers:6}",
                        flush=True,
                    )
                    for line in report.differences[:_SHOWN]:
                        print(f"  {line[:300]}", flush=True)
                debezium.forget_all()
    return 1 if wrong else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=[*KINDS])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the larger table")
    parser.add_argument("--changes", type=int, default=20_000, help="rows that half a step changes")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100_000, help="records of a batch at most")
    parser.add_argument("--steps", type=int, help="the first steps only")
    parser.add_argument("--keep", help="a folder in which everything stays")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} seconds")
    sys.exit(code)
