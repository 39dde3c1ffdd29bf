"""What a case takes: memory at its peak, and the CPU seconds of all its processes."""

from __future__ import annotations

import threading

import psutil

_EVERY_SECONDS = 0.25


class Usage:
    """This process and its children, sampled."""

    def __init__(self) -> None:
        self.driver = self.workers = 0
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(_EVERY_SECONDS):
            driver, workers = me.memory_info().rss, 0
            for child in me.children(recursive=True):
                try:
                    rss, name = child.memory_info().rss, child.name()
                except psutil.NoSuchProcess:
                    continue
                # a JVM that starts a program is there twice for a moment, under another name
                driver += rss if name == "java" else 0
                workers += rss if name.startswith("python") else 0
            self.driver, self.workers = max(self.driver, driver), max(self.workers, workers)

    def stop(self) -> dict[str, int]:
        self._ended.set()
        return {"driver_bytes": self.driver, "worker_bytes": self.workers}


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
