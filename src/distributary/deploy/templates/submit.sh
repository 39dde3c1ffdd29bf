#!/bin/sh
# runs the pipeline once: takes what is there and ends; further arguments go to spark-submit
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd @folder@
# the JVM connectors, fetched once into the user's cache
jars=$(@python@ -c 'from distributary.spark.jars import ensure_connectors; print(",".join(map(str, ensure_connectors())))')
export SPARK_HOME="${SPARK_HOME:-$(@python@ -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}"
# the engine is made for one version; with another it fails somewhere in the middle
found=$(ls "$SPARK_HOME/jars" | sed -n 's/^spark-core_[0-9.]*-\([0-9]*\.[0-9]*\).*/\1/p')
if [ "$found" != @spark@ ]; then
  echo "SPARK_HOME has Spark ${found:-of no known version}, Spark @spark@ is needed: unset SPARK_HOME" >&2
  exit 2
fi
exec "$SPARK_HOME/bin/spark-submit" \
@options@
  "$@" \
  "$here/launch.py" run @file@ --available-now
