#!/bin/sh
# the driver's command as it is given; `executor` is how Spark on Kubernetes asks for an executor
set -eu
if [ "${1:-}" != executor ]; then
  if [ -z "${DISTRIBUTARY_TOKEN:-}" ]; then
    # one that nobody knows: /live and /ready answer without it, all the rest stays closed
    DISTRIBUTARY_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')
    export DISTRIBUTARY_TOKEN
  fi
  exec distributary "$@"
fi
spark=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
set --
# Spark numbers its JVM options: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
number=0
while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec java "$@" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*:${DISTRIBUTARY_JARS:-}/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
