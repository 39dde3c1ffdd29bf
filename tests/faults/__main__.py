"""`make faults`: rounds of faults for as long as one likes, and what they found.

python -m tests.faults --minutes 30 --seed 7 --only kill,stop --shapes delta,kafka
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from tests.faults.faults import FAULTS, faults_for, wanted
from tests.faults.feeds import SHAPES
from tests.faults.forkserver import ForkServer
from tests.faults.rounds import Order, Report, Servers, play

_MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play rounds until the time is over; 1 if anything was found."""
    asked = _parse(arguments)
    _with_own_mounts()
    # so that what was started is ended, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shapes = [name for name in asked.shapes if faults_for(SHAPES[name], asked.only)]
    if not shapes:
        print("none of these faults can be done to these shapes here", file=sys.stderr)
        return 2
    reports: list[Report] = []
    deadline = time.monotonic() + asked.minutes * 60
    keep = Path(asked.keep).absolute()
    say = sys.stderr if asked.json else sys.stdout
    print(f"seed {asked.seed}", file=say, flush=True)
    with _folder() as folder, ExitStack() as stack:
        forks = ForkServer(folder / "forkserver.log")
        stack.callback(forks.close)
        started: dict[str, Servers] = {}
        orders = {name: _endless(name, asked) for name in shapes}
        for number in range(asked.rounds or sys.maxsize):
            if time.monotonic() > deadline and not asked.rounds:
                break
            shape = shapes[number % len(shapes)]
            servers = _servers(shape, started, stack, folder)
            report = play(
                shape,
                asked.seed + number,
                folder=folder,
                keep=keep,
                servers=replace(servers, forks=forks),
                faults=[next(orders[shape]) for _ in range(asked.faults)],
            )
            reports.append(report)
            print(report.line(), file=say, flush=True)
    print(_table(reports, asked), file=say, flush=True)
    if asked.json:
        print(json.dumps({"version": 1, "rounds": [asdict(r) for r in reports]}, indent=2))
    return 1 if any(r.findings for r in reports) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.faults", description=__doc__)
    seed = os.environ.get("FAULTS_SEED") or str(random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no round after these")
    parser.add_argument("--rounds", type=int, default=0, help="so many, whatever they take")
    parser.add_argument("--seed", type=int, default=int(seed), help="of the first round")
    parser.add_argument("--faults", type=int, default=3, help="in each round")
    parser.add_argument("--only", type=_names(FAULTS), default=(), help="these faults")
    parser.add_argument("--shapes", type=_names(SHAPES), default=(), help="these shapes")
    parser.add_argument("--keep", default="build/faults", help="where failed rounds are kept")
    parser.add_argument("--json", action="store_true", help="print one document in the end")
    asked = parser.parse_args(arguments)
    asked.shapes = [name for name in SHAPES if not asked.shapes or name in asked.shapes]
    return asked


def _endless(shape: str, asked: argparse.Namespace) -> Iterator[Order]:
    """Give all faults of a shape by chance before one comes again; as many as are named, in order.

    What comes in a round can so be named, and comes again.
    """
    orders = faults_for(SHAPES[shape], asked.only)
    dice = random.Random(f"{asked.seed}/{shape}")
    while True:
        exact = len(orders) == len(asked.only) == asked.faults
        yield from orders if exact else dice.sample(orders, len(orders))


def _names(known: Mapping[str, object]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        # a variant of a fault may follow: stop:after_ledger
        unknown = [n for n in names if all(wanted(n, name) is None for name in known)]
        if unknown:
            raise argparse.ArgumentTypeError(f"{sorted(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def _with_own_mounts() -> None:
    """Begin again in a name space of mounts that ends with this process, where that is allowed."""
    if "FAULTS_MOUNTS" in os.environ:
        return
    unshare = [shutil.which("unshare") or "", "--mount", "--propagation", "private"]
    allowed = os.geteuid() == 0 and bool(unshare[0]) and sys.platform == "linux"
    if allowed and subprocess.run([*unshare, "true"], check=False).returncode == 0:
        os.environ["FAULTS_MOUNTS"] = "private"
        command = [*unshare, sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        os.execv(command[0], command)
    os.environ["FAULTS_MOUNTS"] = "none"


@contextmanager
def _folder() -> Iterator[Path]:
    # a killed process loses nothing of what it wrote, on a disk or not: memory is quicker to sync
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="faults-", dir=memory, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _servers(shape: str, started: dict[str, Servers], stack: ExitStack, folder: Path) -> Servers:
    """A broker or an object store, started when a shape asks for it and kept until the end."""
    need = "kafka" if SHAPES[shape].source == "kafka" else "store" * SHAPES[shape].on_store
    if not need:
        return Servers()
    if need not in started:
        if need == "kafka":
            from distributary_lab.services.services import Services

            services = stack.enter_context(Services(folder / "services"))
            started[need] = Servers(kafka=services.kafka)
        else:
            from tests.source.s3_server import s3_server

            started[need] = Servers(store=stack.enter_context(s3_server()))
    return started[need]


def _table(reports: list[Report], asked: argparse.Namespace) -> str:
    refusals: Counter[str] = sum((r.refusals for r in reports), Counter())
    failed = [r for r in reports if r.findings]
    lines = [
        "",
        f"rounds        {len(reports)}",
        f"runs          {sum(r.runs for r in reports)}",
        f"kills         {sum(r.kills for r in reports)}",
        f"records fed   {sum(r.records for r in reports)}",
        *(f"refused       {n:4} {code}" for code, n in refusals.most_common()),
        f"findings      {len(failed)} of {len(reports)} rounds"
        if failed
        else "findings      LOST = DOUBLE = ALIEN = 0",
    ]
    for one in failed:
        only = f"--faults {len(one.faults)} --only {','.join(one.faults)}"
        again = f"--rounds 1 --seed {one.seed} --shapes {one.shape} {only}"
        lines += [f'  make faults FAULTS_ARGS="{again}"', *(f"    {f}" for f in one.findings)]
        lines += [f"    kept in {one.kept}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
