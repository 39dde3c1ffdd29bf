"""A script for `spark-submit`, as an entry of the table of targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from distributary.config.deploy import SparkSubmit
from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.refusals import other_spark
from distributary.deploy.scripts import spark_submit_target
from distributary.deploy.targets.target_entry import TargetEntry
from distributary.spark.versions import NEEDED, is_supported, spark_in


class SparkSubmitEntry(TargetEntry):
    """A script."""

    name, section = "spark-submit", "spark_submit"
    has_own_files = False

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline."""
        return spark_submit_target(pipeline, out=out)

    def unfit(self, pipeline: Installable, environ: Mapping[str, str]) -> Iterator[str]:
        """Yield a warning if the version of an installed Spark is not known; refuse another."""
        if environ.get("SPARK_HOME"):
            yield from _spark_home(Path(environ["SPARK_HOME"]))

    def master(self, pipeline: Installable) -> str:
        """Return the master of the section, or that of the pipeline."""
        return (pipeline.deploy.spark_submit or SparkSubmit()).master or pipeline.master


ENTRY = SparkSubmitEntry()


def _spark_home(home: Path) -> Iterator[str]:
    spark = spark_in(home)
    if not spark:
        yield f"not checked here: whether the Spark in {home} is {NEEDED}"
    elif not is_supported(spark):
        raise other_spark(
            "SPARK_HOME",
            f"{home} has Spark {spark}",
            "unset SPARK_HOME: the script takes the Spark that is installed with distributary",
        )
