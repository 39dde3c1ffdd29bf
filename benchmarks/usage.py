"""What a case takes: memory at its peak and CPU seconds; and what its host kept from it."""

from __future__ import annotations

import threading
from typing import Any

import psutil

_EVERY_SECONDS = 0.25


class Usage:
    """This process and its children, sampled."""

    def __init__(self) -> None:
        self.driver = self.workers = 0
        self._before = psutil.cpu_times()
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(_EVERY_SECONDS):
            driver, workers = me.memory_info().rss, 0
            for child in me.children(recursive=True):
                try:
                    rss, name, parent = child.memory_info().rss, child.name(), child.ppid()
                except psutil.NoSuchProcess:
                    continue
                # a JVM that starts a program is there twice for a moment, under another name
                driver += rss if name == "java" else 0
                # workers are below a JVM; what a case starts itself, as a producer, is none
                workers += rss if name.startswith("python") and parent != me.pid else 0
            self.driver, self.workers = max(self.driver, driver), max(self.workers, workers)

    def stop(self) -> dict[str, float]:
        self._ended.set()
        stolen = _stolen(self._before, psutil.cpu_times())
        return {"driver_bytes": self.driver, "worker_bytes": self.workers, **stolen}


def _stolen(before: Any, after: Any) -> dict[str, float]:
    """The share of the machine's cores that its host gave to neighbours, where the system knows."""
    if not hasattr(after, "steal"):
        return {}
    # a guest's time is part of `user`, which is counted already
    counted = [name for name in after._fields if not name.startswith("guest")]
    total = sum(getattr(after, name) - getattr(before, name) for name in counted)
    return {"stolen": round((after.steal - before.steal) / total, 3)} if total > 0 else {}


def cpu_seconds() -> float:
    """Of this process, its JVM and its workers, as long as these live; only differences tell.

    Of a child that ended, its parent still knows what it took.
    """
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
