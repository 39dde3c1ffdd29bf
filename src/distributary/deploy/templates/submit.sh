#!/bin/sh
# runs the pipeline once: takes what is there and ends; further arguments go to spark-submit
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd @folder@
# the JVM connectors, fetched once into the user's cache
jars=$(@python@ -c 'from distributary.spark.jars import ensure_connectors; print(",".join(map(str, ensure_connectors())))')
export SPARK_HOME="${SPARK_HOME:-$(@python@ -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}"
exec "$SPARK_HOME/bin/spark-submit" \
@options@
  "$@" \
  "$here/launch.py" run @file@ --available-now
