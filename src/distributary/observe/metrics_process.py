"""What the process and everything below it takes of the machine, asked for at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

import psutil
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from distributary.observe.metrics_catalogue import MEMORY


class MemoryCollector(Collector):
    """Resident memory of the driver, its JVM and its workers."""

    def collect(self) -> Iterable[Family]:
        """For `prometheus_client`."""
        me = psutil.Process()
        total = sum(map(_resident, [me, *me.children(recursive=True)]))
        return [GaugeMetricFamily(MEMORY.name, MEMORY.help, value=total)]


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        # it has ended meanwhile
        return 0
