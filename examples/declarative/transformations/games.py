"""One streaming table for each type of game, and one for what could not be decoded."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from distributary import pipelines

FILE = "games.yaml"
spark = SparkSession.active()


def define(game: pipelines.KnownType) -> None:
    """A streaming table with the columns that this game has now."""

    @dp.table(name=game.table)
    def table() -> DataFrame:
        return pipelines.decoded(spark, FILE, type=game.name)


for each in pipelines.types(FILE):
    define(each)


@dp.table
def dead_letters() -> DataFrame:
    """Records that are a row of no game, with the reason."""
    return pipelines.dead_letters(spark, FILE)
