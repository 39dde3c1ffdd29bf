"""`make soak`: a steady stream for hours, and whether anything grows that should not.

A real broker and registry are fed at a steady rate; the pipeline runs as a user starts it, in a
process of its own, with upkeep on. Every half minute memory, open files, threads, CPU, the time of
a batch, the CPU time of `status`, files and bytes are written down. At the end every record must be
in its table exactly once, and each series must be flat: see `_verdict`.

    python -m benchmarks.soak                      # 200 records/s, 60 tables, two hours
    python -m benchmarks.soak --minutes 5          # a quick try
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from benchmarks.engine import GAMES
from benchmarks.games import VERSIONS, Games
from benchmarks.order import Order, Row
from benchmarks.topic import PARTITIONS, fill, registry_of, serving
from distributary.delta.log import load
from distributary.store.base import at
from distributary.supervise.process import start_tied

_MESSAGES = 20_000
"""Different messages; the producer sends them again and again."""
_PATIENCE_SECONDS = 900.0
_GRACE_SECONDS = 120.0
"""How long the run may take to end its batch once it is asked to stop, or the soak is gone."""
_POLL_SECONDS = 1.0
_WARM_SHARE = 0.25
"""Of the samples: JVM, caches and tables settle meanwhile, and are not judged."""
_MOST_GROWTH = 0.10
"""Over the samples that are judged, as a share of their mean."""
_FEWEST_SAMPLES = 20
"""Fewer say nothing about a slope: of a short run only the records are judged."""
_FLAT = {
    "driver_mb": "memory of the driver, MB",
    "jvm_mb": "memory of the JVM, MB",
    "workers_mb": "memory of the workers, MB",
    "open_files": "open files, all processes",
    "threads": "threads, all processes",
    "processes": "processes",
    "cpu_share": "cores used",
    "batch_cpu_seconds": "CPU seconds of a batch",
    "batch_seconds": "seconds of a batch, median",
    "lag_seconds": "age of the newest record, s",
    "status_cpu_seconds": "CPU seconds of `status`",
    "live_files": "live files a table",
}
"""Series that have to be flat, with their titles in the plot."""
_GROW = {
    "disk_files": "files a table on disk",
    "lake_mb": "size of the lake, MB",
    "upkeep_mb": "memory of upkeep, MB",
    "batches": "batches so far",
}
"""Series that grow with the records, or until files expire."""


@dataclass(slots=True)
class Run:
    """The command `run` in a process of its own, and what it has written to its log."""

    file: Path
    process: subprocess.Popen[bytes]
    log: IO[str]
    batches: int = 0
    records: int = 0
    _settled: list[Mapping[str, Any]] = field(default_factory=list)
    upkeep: list[Mapping[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def read_log(self) -> None:
        """Take in the lines that came since the last call."""
        for line in self.log:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            name = entry.get("event")
            if name == "batch_settled":
                self.batches += 1
                self.records += entry["read"]
                self._settled.append(entry)
            elif name is not None and "maint" in name:
                self.upkeep.append(entry)
            if entry.get("level") in ("ERROR", "CRITICAL"):
                self.problems.append(str(entry.get("message"))[:300])

    def settled_since(self) -> list[Mapping[str, Any]]:
        """The batches that were settled since the last call."""
        found, self._settled = self._settled, []
        return found

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the pipeline ended with {self.process.returncode}: see its log")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="how long records are sent")
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--tables", type=int, default=60, help="types of records")
    parser.add_argument("--every", default="", help="a batch every so often; else without a pause")
    parser.add_argument("--upkeep", default="10m", help="`maintain.every` of the pipeline file")
    parser.add_argument("--sample", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument("--folder", type=Path, help="where lake and logs stay; else they are gone")
    parser.add_argument("--output", type=Path, default=Path("build/soak"), help="for the results")
    options = parser.parse_args()
    # as Ctrl-C does: what was started is ended, and the folder is removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.output.mkdir(parents=True, exist_ok=True)
    with _folder(options.folder) as folder:
        order = Order(
            tables=options.tables,
            records=50_000,
            batches=0,
            warm=0,
            rate=options.rate,
            seconds=options.minutes * 60,
            folder=str(folder),
        )
        found = _soak(order, options)
    path = options.output / "soak.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    _draw(found, path.with_suffix(".png"))
    for name, judged in found["verdict"].items():
        print(
            f"{name:20} mean {judged['mean']:10.2f}  grows {judged['growth']:+7.1%}  "
            f"{judged['says']}"
        )
    print(f"records: {found['records']}")
    print(f"{'flat and exact' if found['good'] else 'NOT GOOD'}: {path}")
    return 0 if found["good"] else 1


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        yield Path(folder)


def _soak(order: Order, options: argparse.Namespace) -> dict[str, Any]:
    with serving(order) as served:
        games = Games(games=served.tables, records=_MESSAGES, registry=registry_of(served))
        messages = served.root / "messages.arrow"
        rows = games.shuffled(0, _MESSAGES).select(["key", "value"])
        with pa.OSFile(str(messages), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        fill(served, games.one_of_each().to_batches())
        file_ = _pipeline_file(served, options.upkeep)
        with _running(file_, options.every) as run:
            _wait(run, records=served.tables * VERSIONS)
            samples = _fed(served, run, messages, options)
            exit_code = _stopped(run, records=_ends(served))
        records = _exactly_once(served)
    verdict = _verdict(samples)
    flat = all(judged["says"] != "GROWS" for judged in verdict.values())
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "minutes": options.minutes,
        "rate": options.rate,
        "tables": options.tables,
        "exit": exit_code,
        "records": records,
        "problems": run.problems[:50],
        "upkeep": run.upkeep[-50:],
        "verdict": verdict,
        "good": flat and records["exact"] and exit_code == 128 + signal.SIGTERM,
        "samples": samples,
    }


def _pipeline_file(order: Order, upkeep: str) -> Path:
    path = order.root / "soak.yaml"
    path.write_text(
        f"""\
name: soak
source: {{type: kafka, bootstrap_servers: "{order.servers}", topics: [{order.topic}],
  max_records_per_batch: {order.records}}}
registry: {{url: "{order.registry}"}}
{GAMES}
tables: {{each: "silver_{{type}}", unified: unified_gold}}
lake: {{path: {order.root}/lake}}
maintain: {{every: {upkeep}}}
"""
    )
    return path


@contextmanager
def _running(file: Path, every: str) -> Iterator[Run]:
    how = ["--every", every] if every else ["--continuous"]
    command = [sys.executable, "-m", "distributary", "run", str(file), *how]
    log = file.with_suffix(".log")
    with log.open("wb") as sink, log.open(encoding="utf-8", errors="replace") as reader:
        process, tether = start_tied(
            [*command, "--log-format", "json"],
            grace=_GRACE_SECONDS,
            cwd=file.parent,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
        try:
            yield Run(file, process, reader)
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(tether)


def _wait(run: Run, *, records: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while run.records < records:
        run.read_log()
        run.require_alive()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{run.records} of {records} records after {_PATIENCE_SECONDS} s")
        time.sleep(_POLL_SECONDS)


def _fed(order: Order, run: Run, messages: Path, options: argparse.Namespace) -> list[Row]:
    """The samples that were taken while the producer was sending."""
    arguments = [order.servers, order.topic, str(messages), str(order.rate), str(order.seconds)]
    producer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pace", *arguments], stdout=subprocess.DEVNULL
    )
    samples: list[Row] = []
    began, spent, last = time.monotonic(), _cpu(run), time.monotonic()
    run.settled_since()
    try:
        while producer.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                producer.wait(max(0.0, last + options.sample - time.monotonic()))
            run.require_alive()
            if time.monotonic() - last < options.sample / 2:
                continue
            now, cpu = time.monotonic(), _cpu(run)
            before = run.batches
            row = _sample(order, run)
            row |= {"seconds": now - began, "cpu_share": (cpu - spent) / (now - last)}
            row["batch_cpu_seconds"] = (cpu - spent) / max(1, run.batches - before)
            samples.append(row)
            spent, last = cpu, now
            print(_shortly(samples[-1]), file=sys.stderr, flush=True)
    finally:
        if producer.poll() is None:
            producer.terminate()
            producer.wait()
    if producer.returncode:
        raise RuntimeError(f"the producer ended with {producer.returncode}")
    return samples


def _sample(order: Order, run: Run) -> Row:
    run.read_log()
    settled = run.settled_since()
    lags = [e["lag_seconds"] for e in settled if e.get("lag_seconds") is not None]
    return {
        **_processes(run.process.pid),
        "batch_seconds": statistics.median(e["seconds"] for e in settled) if settled else None,
        "lag_seconds": statistics.median(lags) if lags else None,
        "batches": run.batches,
        "records": run.records,
        "status_cpu_seconds": _status_cpu(run.file),
        **_files(order.root / "lake"),
    }


def _processes(pid: int) -> Row:
    """Memory, open files and threads of the driver, its JVM and the workers below that."""
    driver = psutil.Process(pid)
    names = ("driver_mb", "jvm_mb", "workers_mb", "upkeep_mb", "open_files", "threads")
    sums = dict.fromkeys(names, 0.0)
    count = 0
    below = driver.children(recursive=True)
    # workers are below the JVM; what is not is upkeep, which comes and goes
    workers: set[int] = set()
    for process in below:
        with suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                workers |= {child.pid for child in process.children(recursive=True)}
    for process in [driver, *below]:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            with process.oneshot():
                java = process.name() == "java"
                other = "workers_mb" if process.pid in workers else "upkeep_mb"
                name = "driver_mb" if process.pid == pid else "jvm_mb" if java else other
                # forked workers share most of their memory: what is their own counts
                memory = process.memory_full_info() if name == "workers_mb" else None
                size = process.memory_info().rss if memory is None else memory.uss
                sums[name] += size / 2**20
                if name != "upkeep_mb":
                    sums["open_files"] += process.num_fds()
                    sums["threads"] += process.num_threads()
                    count += 1
    return {name: round(value, 1) for name, value in sums.items()} | {"processes": count}


def _cpu(run: Run) -> float:
    total = 0.0
    driver = psutil.Process(run.process.pid)
    for process in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _status_cpu(file: Path) -> float:
    """CPU seconds of the command `status`, in a process of its own."""
    command = [sys.executable, "-m", "distributary", "status", str(file), "--json"]
    process = subprocess.Popen(
        command, cwd=file.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, ended, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    if process.returncode:
        raise RuntimeError(f"status ended with {process.returncode}")
    return round(used.ru_utime + used.ru_stime, 3)


def _files(lake: Path) -> Row:
    tables = sorted(log.parent for log in lake.glob("*/_delta_log"))
    states = [load(at(table)) for table in tables]
    live = [len(state.files) for state in states if state is not None]
    size, on_disk = 0, 0
    for folder, _, names in os.walk(lake):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(folder, name)).st_size
            on_disk += name.endswith(".parquet") and "_delta_log" not in folder
    many = max(1, len(tables))
    return {
        "live_files": round(sum(live) / many, 1),
        "disk_files": round(on_disk / many, 1),
        "lake_mb": round(size / 2**20, 1),
    }


def _shortly(row: Row) -> str:
    shown = {name: row[name] for name in ("batches", *_FLAT) if row.get(name) is not None}
    figures = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
    return f"{row['seconds']:7.0f} s  {figures}"


def _ends(order: Order) -> int:
    """Records in the topic."""
    return sum(high for _, high in _offsets(order))


def _offsets(order: Order) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": order.servers, "group.id": "soak"})
    try:
        places = [TopicPartition(order.topic, number) for number in range(PARTITIONS)]
        return [consumer.get_watermark_offsets(place, timeout=30) for place in places]
    finally:
        consumer.close()


def _stopped(run: Run, *, records: int) -> int:
    """Wait until everything is read, stop the pipeline; its exit code, which names the signal."""
    _wait(run, records=records)
    run.process.send_signal(signal.SIGTERM)
    return run.process.wait(_PATIENCE_SECONDS)


def _exactly_once(order: Order) -> dict[str, Any]:
    """Compare the coordinates in the tables with the offsets of the topic, record by record."""
    due = {(p, o) for p, (low, high) in enumerate(_offsets(order)) for o in range(low, high)}
    found: dict[str, Any] = {"sent": len(due), "exact": True}
    lake = order.root / "lake"
    layers = {"silver": sorted(lake.glob("silver_*")), "unified": [lake / "unified_gold"]}
    for layer, folders in layers.items():
        seen: list[NumbersPair] = []
        for folder in folders:
            rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["_partition", "_offset"])
            partitions = pc.cast(rows["_partition"], pa.int64()).to_numpy()
            seen.append((partitions, rows["_offset"].to_numpy()))
        places = list(
            zip(
                np.concatenate([p for p, _ in seen]).tolist(),
                np.concatenate([o for _, o in seen]).tolist(),
                strict=True,
            )
        )
        once = set(places)
        lost, doubled = len(due - once), len(places) - len(once)
        found[layer] = {"rows": len(places), "lost": lost, "doubled": doubled}
        found["exact"] &= not lost and not doubled and once == due
    return found


NumbersPair = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def _verdict(samples: Sequence[Row]) -> dict[str, Any]:
    """For each series: its mean, and by which share of it a fitted line rises over three quarters.

    The first quarter is left out. Less than a tenth is flat; a series that falls is too.
    """
    judged = {}
    kept = samples[int(len(samples) * _WARM_SHARE) :]
    for name in (*_FLAT, *_GROW):
        points = [(row["seconds"], row[name]) for row in kept if row.get(name) is not None]
        if len(points) < 2:
            continue
        seconds, values = (np.array(each, dtype=float) for each in zip(*points, strict=True))
        slope = float(np.polyfit(seconds, values, 1)[0])
        mean = float(values.mean())
        growth = slope * float(seconds[-1] - seconds[0]) / mean if mean else 0.0
        says = "expected" if name in _GROW else "GROWS" if growth > _MOST_GROWTH else "flat"
        if len(points) < _FEWEST_SAMPLES and name in _FLAT:
            says = "too few samples"
        judged[name] = {
            "mean": round(mean, 3),
            "per_hour": round(slope * 3600, 4),
            "growth": round(growth, 4),
            "says": says,
        }
    return judged


def _draw(found: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    titles = _FLAT | _GROW
    columns = 3
    rows = -(-len(titles) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 2.4 * rows), squeeze=False, layout="constrained"
    )
    for axis, (name, title) in zip(axes.flat, titles.items(), strict=False):
        points = [
            (row["seconds"] / 60, row[name])
            for row in found["samples"]
            if row.get(name) is not None
        ]
        if points:
            axis.plot(*zip(*points, strict=True), color="#0b6e99", lw=1)
        judged = found["verdict"].get(name)
        grows = judged is not None and judged["says"] == "GROWS"
        told = "" if judged is None else f": {judged['growth']:+.0%}"
        axis.set_title(f"{title}{told}", fontsize=9, color="#c0392b" if grows else "black")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(titles) :]:
        axis.set_visible(False)
    exact = "every record once" if found["records"]["exact"] else "RECORDS ARE NOT EXACT"
    figure.suptitle(
        f"{found['rate']} records/s, {found['tables']} tables, {found['minutes']:g} min, "
        f"{found['machine']}: {exact}; x: minutes",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
