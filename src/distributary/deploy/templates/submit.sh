#!/bin/sh
# runs the pipeline once: takes what is there and ends; further arguments go to spark-submit
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd @folder@
export SPARK_HOME="${SPARK_HOME:-$(@python@ -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}"
# with a Spark of another version the engine fails somewhere in the middle
found=$(ls "$SPARK_HOME/jars" | sed -n 's/^spark-core_[0-9.]*-\([0-9]*\.[0-9]*\).*/\1/p')
case "$found" in
  @versions@) ;;
  *)
    echo "SPARK_HOME has Spark ${found:-of no known version}, Spark @needed@ is needed: unset SPARK_HOME" >&2
    exit 2
    ;;
esac
# the JVM connectors for this Spark, fetched once into the user's cache
jars=$(@python@ -c 'from distributary.spark.jars import ensure_connectors; print(",".join(map(str, ensure_connectors())))')
exec "$SPARK_HOME/bin/spark-submit" \
@options@
  "$@" \
  "$here/launch.py" run @file@ --available-now
