#!/bin/sh
# runs the pipeline once: takes what is there and ends; further arguments go to spark-submit
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# the Python of the command `distributary`, or the one that DRIVER_PYTHON names
python=${DRIVER_PYTHON:-}
if [ -z "$python" ]; then
  command=$(command -v distributary) || {
    echo "distributary is not on the PATH: activate its environment, or set DRIVER_PYTHON" >&2
    exit 2
  }
  # the first line names it; where that would be too long, pip writes it into the second
  python=$(sed -n -e '1s/^#! *\(.*python[0-9.]*\)$/\1/p' -e "2s/^'''exec' \"*\([^\"]*python[0-9.]*\).*/\1/p" "$command")
fi
export SPARK_HOME="${SPARK_HOME:-$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}"
# Spark's log: warnings only, unless the caller chose another configuration
export SPARK_SUBMIT_OPTS="\"-Dlog4j2.configurationFile=file:$here/log4j2.properties\" ${SPARK_SUBMIT_OPTS:-}"
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
jars=$("$python" -c 'from distributary.spark.jars import ensure_connectors; print(",".join(map(str, ensure_connectors())))')
exec "$SPARK_HOME/bin/spark-submit" \
@options@
  "$@" \
  "$here/launch.py" run "$here/@file@" --available-now
