"""The image of a pipeline's pods, and what starts in them."""

from __future__ import annotations

from distributary.deploy.wheel import WHEEL

USER = 10001
"""Neither root nor anybody of the base image."""
HOME = "/opt/distributary"
JARS = f"{HOME}/jars"

_DIGEST = "@sha256:"
_PINNED = "# the digest says which image; renew it now and then, for Debian's security updates"
_UNPINNED = """\
# NOT PINNED: a tag may name another image tomorrow. Look its digest up (docker buildx imagetools
# inspect NAME:TAG) and set deploy.kubernetes.base_image: NAME:TAG@sha256:DIGEST"""

ENTRYPOINT = """\
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
while eval "option=\\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec java "$@" \\
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \\
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*:${DISTRIBUTARY_JARS:-}/*" \\
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
  --driver-url "$SPARK_DRIVER_URL" \\
  --executor-id "$SPARK_EXECUTOR_ID" \\
  --cores "$SPARK_EXECUTOR_CORES" \\
  --app-id "$SPARK_APPLICATION_ID" \\
  --hostname "$SPARK_EXECUTOR_POD_IP" \\
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \\
  --podName "$SPARK_EXECUTOR_POD_NAME"
"""


def dockerfile(base: str) -> str:
    """Python, Java, this version and its JVM connectors; nothing of a pipeline, no secret."""
    return f"""\
{_PINNED if _DIGEST in base else _UNPINNED}
ARG BASE_IMAGE={base}
FROM ${{BASE_IMAGE}}

# signed by Debian, and the newest that it has: an image that is built later may have newer ones
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \\
    && rm -rf /var/lib/apt/lists/*

# the wheel is made by `distributary package`; no index is asked for Distributary. Its locks name
# each file of the rest by checksum: first what builds source packages, of which PySpark is one
COPY entrypoint.sh {WHEEL} /tmp/build/
RUN python -m zipfile --extract /tmp/build/{WHEEL} /tmp/wheel \\
    && pip install --no-cache-dir --require-hashes \\
        --requirement /tmp/wheel/distributary/deploy/build.lock \\
    && pip install --no-cache-dir --require-hashes --no-build-isolation \\
        --requirement /tmp/wheel/distributary/deploy/requirements.lock \\
    && pip install --no-cache-dir --no-deps --no-index /tmp/build/{WHEEL} \\
    && install -m 0755 /tmp/build/entrypoint.sh /usr/local/bin/distributary-entrypoint \\
    && XDG_CACHE_HOME=/tmp/cache python -m distributary.run.connectors \\
    && mkdir -p {JARS} \\
    && find /tmp/cache -name '*.jar' -exec cp {{}} {JARS}/ \\; \\
    && rm -rf /tmp/build /tmp/cache /tmp/wheel

ENV DISTRIBUTARY_JARS={JARS} PYTHONUNBUFFERED=1
USER {USER}:{USER}
WORKDIR {HOME}
ENTRYPOINT ["tini", "-s", "--", "distributary-entrypoint"]
"""
