"""Kubernetes as far as Spark talks to it, and pods without a container engine.

A pod is a process in a mount namespace of its own: a root that cannot be written, the volumes of
its manifest, the user and the working directory of our image, and nothing of this machine's
environment. Its root is this machine's programs, not the layers of an image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributary.deploy.file_targets import template
from distributary.deploy.kubernetes_files import USER

HOST = "127.0.0.1"
_END_SECONDS = 60
_SANDBOX = r"""
set -eu
root=$1; shift
mount -t tmpfs tmpfs "$root"
for name in bin sbin lib lib32 lib64 usr opt proc dev sys; do
  if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"
  elif [ -d "/$name" ]; then mkdir "$root/$name"; mount --rbind "/$name" "$root/$name"; fi
done
cp -a /etc "$root/etc"
printf '127.0.0.1 localhost %s\n' "$HOSTS" > "$root/etc/hosts"
eval "$USERS"
mkdir "$root/tmp" "$root/image"
cp "$ENTRYPOINT" "$root/image/entrypoint"
chmod 0755 "$root/image/entrypoint"
# one line each: how, from where, to where
printf '%s' "$MOUNTS" | while read -r kind from to; do
  [ "$kind" = bind ] || continue
  mkdir -p "$root$to"
  mount --rbind "$from" "$root$to"
done
printf '%s' "$MOUNTS" | while read -r kind from to; do
  [ "$kind" = empty ] || continue
  mkdir -p "$root$to"
done
printf '%s' "$MOUNTS" | while read -r kind from to; do
  [ "$kind" = empty ] || continue
  mount -t tmpfs -o mode=2777 tmpfs "$root$to"
done
mount -o remount,ro "$root"
printf '%s' "$MOUNTS" | while read -r kind from to; do
  [ "$kind" = inside ] || continue
  mkdir -p "$root$to"
  mount --bind "$from" "$root$to"
done
exec chroot --userspec="$USER_IDS" "$root" /usr/bin/env -i -C "$WORKDIR" "$@"
"""


def can_make_pods() -> bool:
    """Whether this process may make namespaces, and mount in them."""
    line = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    try:
        return subprocess.run(line, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@dataclass
class Image:
    """What the Dockerfile of `install` says about a container that is started of it."""

    dockerfile: str
    user_entries: bool = True
    """False: as if the image had no entry for its user."""

    @property
    def workdir(self) -> str:
        return re.findall(r"^WORKDIR (\S+)$", self.dockerfile, re.M)[-1]

    @property
    def users(self) -> str:
        """The image's own commands that make the user, for another root."""
        if not self.user_entries:
            return ":"
        text = self.dockerfile.replace("\\\n", " ")
        (line,) = [each for each in text.splitlines() if each.startswith("RUN echo")]
        return line.removeprefix("RUN ").replace(">> /etc/", '>> "$root"/etc/')

    @property
    def user(self) -> str:
        return re.findall(r"^USER (\S+)$", self.dockerfile, re.M)[-1]


@dataclass
class Kubernetes:
    """A namespace of pods."""

    image: Image
    folder: Path
    environ: Mapping[str, str]
    """What every container has from the image."""
    inside: Sequence[Path] = ()
    """Folders of this machine that pods see."""
    hosts: str = ""
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def start(self, pod: dict[str, Any], config_maps: Mapping[str, Any]) -> subprocess.Popen[str]:
        """Run the one container of a pod."""
        name = pod["metadata"]["name"]
        # an address each: of two executors with one, Spark reads the other's disk
        address = f"127.0.0.{2 + len(self.pods)}"
        pod["status"] = {"phase": "Running", "podIP": address}
        spec = pod["spec"]
        (container,) = spec["containers"]
        security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        assert security["readOnlyRootFilesystem"] is True
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        mounts: list[str] = []
        for mount in container.get("volumeMounts", ()):
            volume, to = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                mounts.append(f"empty - {to}")
            elif "configMap" in volume:
                place = self.folder / f"{name}-{mount['name']}"
                place.mkdir(mode=0o755)
                known = config_maps.get(volume["configMap"]["name"], {})
                for key, text in known.get("data", {}).items():
                    (place / key).write_text(text)
                mounts.append(f"bind {place} {to}")
        for place in (Path(__file__).parents[2], Path(sys.base_prefix), *self.inside):
            # what is below a volume is mounted when the volume is
            later = str(place).startswith("/tmp/")
            mounts.append(f"{'inside' if later else 'bind'} {place} {place}")
        environ = dict(self.environ)
        for source in container.get("envFrom", ()):
            environ |= self.secrets[source["secretRef"]["name"]]
        environ |= _environment(container.get("env", ()), pod)
        root = self.folder / f"{name}-root"
        root.mkdir(mode=0o755)
        entrypoint = self.folder / "entrypoint.sh"
        entrypoint.write_text(template("entrypoint.sh"))
        words = [f"{key}={value}" for key, value in environ.items()]
        log = (self.folder / f"{name}.log").open("w")
        ids = f"{security['runAsUser']}:{security['runAsGroup']}"
        # the manifest and the image must mean the same user
        assert ids == self.image.user == f"{USER}:{USER}"
        with log:
            started = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation", "private"),
                    *("sh", "-c", _SANDBOX, "sh", str(root), *words),
                    *("/bin/sh", "/image/entrypoint", *container["args"]),
                ],
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOSTS": self.hosts,
                    "USERS": self.image.users,
                    "ENTRYPOINT": str(entrypoint),
                    "MOUNTS": "".join(f"{line}\n" for line in mounts),
                    "USER_IDS": ids,
                    "WORKDIR": container.get("workingDir", self.image.workdir),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.pods[name] = started
        self.objects[f"pods/{name}"] = pod
        return started

    def log(self, name: str) -> str:
        """What a pod has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


def _environment(given: Sequence[Mapping[str, Any]], pod: Mapping[str, Any]) -> dict[str, str]:
    """Variables as Kubernetes fills them in, in their order."""
    found: dict[str, str] = {}
    fields = {"metadata.name": pod["metadata"]["name"], "status.podIP": pod["status"]["podIP"]}
    for each in given:
        source = each.get("valueFrom") or {}
        value = each.get("value") or ""
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), value)
    return found


@contextmanager
def kubernetes(made: Kubernetes) -> Iterator[Kubernetes]:
    """Its API on loopback, for as long as a block lasts."""

    class Handler(_Handler):
        state = made

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://{HOST}:{server.server_port}"
    try:
        yield made
    finally:
        for pod in made.pods.values():
            pod.terminate()
        for pod in made.pods.values():
            pod.wait(timeout=_END_SECONDS)
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: Kubernetes

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests must be quiet."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self.state.asked.append(f"{method} {self.path}")
        key = re.sub(r"^/api/v1/namespaces/[^/]+/", "", path)
        kind, _, name = key.partition("/")
        status, answer = 200, {}
        if method == "GET" and name:
            known = self.state.objects.get(key)
            status, answer = (200, known) if known else (404, _status(404))
        elif method == "GET":
            items = [o for k, o in self.state.objects.items() if k.startswith(f"{kind}/")]
            labels = "spark-role=executor" in self.path.replace("%3D", "=")
            items = [o for o in items if not labels or _is_executor(o)]
            answer = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
        elif method == "DELETE":
            gone = [k for k in self.state.objects if k == key or (not name and k.startswith(kind))]
            for each in gone:
                self._end(each)
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        else:
            given = json.loads(body)
            name = name or given["metadata"]["name"]
            old = self.state.objects.get(f"{kind}/{name}", {})
            answer = {**old, **given} if method == "PATCH" else given
            answer["metadata"].setdefault("uid", f"uid-{name}")
            self.state.objects[f"{kind}/{name}"] = answer
            if kind == "pods" and name not in self.state.pods:
                maps = self.state.objects.items()
                found = {k.partition("/")[2]: o for k, o in maps if k.startswith("configmaps/")}
                self.state.start(answer, found)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _end(self, key: str) -> None:
        found = self.state.objects.get(key, {})
        if key.startswith("pods/") and _is_executor(found):
            self.state.pods[key.partition("/")[2]].terminate()
            self.state.objects.pop(key, None)


def _is_executor(found: Mapping[str, Any]) -> bool:
    return found.get("metadata", {}).get("labels", {}).get("spark-role") == "executor"


def _status(code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}


def image_environment() -> dict[str, str]:
    """The variables of the image, with this machine's places of the same things."""
    tools = str(Path(sys.executable).parent)
    return {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
    }
