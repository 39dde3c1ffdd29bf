"""How much memory a case takes at most."""

from __future__ import annotations

import threading

import psutil


class Memory:
    """Peak memory of this process and its children, sampled."""

    def __init__(self) -> None:
        self.driver = self.workers = 0
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.25):
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
