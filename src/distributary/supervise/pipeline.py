"""The `Pipeline` that users import: it runs as `distributary run` does, with maintenance beside."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from distributary.config.document import OriginKind
from distributary.config.engine import Trigger
from distributary.engine import pipeline as engine
from distributary.engine.loop import RunSummary
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.supervise.upkeep import maintained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_A_RUN = ("run.", "spark.", "trigger")
"""Settings that maintenance does not read, so that a call may set them otherwise than the file."""

_log = logging.getLogger(__name__)


class Pipeline(engine.Pipeline):
    """One pipeline file, ready to run; a run that goes on keeps its tables in order."""

    __slots__ = ()

    def run(
        self, *, trigger: Trigger | str | None = None, spark: SparkSession | None = None
    ) -> RunSummary:
        """Run until the trigger says that it is done, or `stop` is set.

        Raises ConfigError for an argument that is wrong.
        """
        chosen = self.chosen_trigger(trigger)
        if not self._is_as_its_file():
            return super().run(trigger=chosen, spark=spark)
        with maintained(self.loaded, chosen, self.bus, _write):
            return super().run(trigger=chosen, spark=spark)

    def _is_as_its_file(self) -> bool:
        """Return whether a process that reads the file would maintain the same tables."""
        origins = self.loaded.origins.items()
        given = [key for key, origin in origins if origin.kind is OriginKind.FLAG]
        return self.loaded.path is not None and all(key.startswith(_OF_A_RUN) for key in given)


def _write(line: LogLine) -> None:
    _log.info("%s", spell(line, LogFormat.TEXT))
