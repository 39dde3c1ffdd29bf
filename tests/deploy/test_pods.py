"""What `install --target kubernetes` writes, run: a driver and its executors as pods."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from distributary.deploy.file_targets import FileTarget
from distributary.deploy.kubernetes_files import kubernetes_target
from distributary.deploy.pipeline_file import read_for_install
from distributary.spark.jars import ensure_connectors
from distributary_lab.services.processes import free_port
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.services.pods import Image, Kubernetes, can_make_pods, image_environment, kubernetes
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, KEYS, S3Server, s3_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(not can_make_pods(), reason="needs root, for namespaces and mounts"),
]

DEPLOY = """
deploy:
  kubernetes:
    image: registry.example/games:1.0
    namespace: data
    claim: not-needed
    secrets: [games-secrets]
    schedule: "0 * * * *"
    spark:
      executors: {executors}
      memory: 512m
      conf:
        spark.driver.port: "{driver}"
        spark.driver.blockManager.port: "{blocks}"
        spark.kubernetes.executor.enableApiWatcher: "false"
        spark.scheduler.minRegisteredResourcesRatio: "1.0"
spark: {{driver_memory: 1g}}
"""
SECRETS = {"LAKE_KEY": KEYS["aws_access_key_id"], "LAKE_SECRET": KEYS["aws_secret_access_key"]}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def games(tmp_path: Path) -> Games:
    made = Games(tmp_path, GamesPlan(games=3, versions=2, records=10))
    made.send_all()
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o755 if folder.is_dir() else 0o644)
    return made


def installed(games: Games, server: S3Server, *, executors: int) -> tuple[FileTarget, str]:
    """The files of a pipeline whose lake is in a bucket, and the address of that lake."""
    driver = free_port(but=set())
    blocks = free_port(but={driver})
    text = DEPLOY.format(executors=executors, driver=driver, blocks=blocks)
    file = games.write_file(tables="{each: 'silver_{type}'}", extra=text)
    lake = f"s3://{BUCKET}/{unique('lake')}"
    options = (
        f'AWS_ENDPOINT_URL: "http://127.0.0.1:{server.port}", aws_allow_http: "true", '
        'aws_access_key_id: "${env:LAKE_KEY}", aws_secret_access_key: "${env:LAKE_SECRET}"'
    )
    told = f"lake: {{path: {lake}, storage_options: {{{options}}}}}"
    file.write_text(file.read_text().replace(f"lake: {{path: {games.lake}}}", told))
    target = kubernetes_target(read_for_install(file, environ={}), out=games.root / "out")
    target.apply(target.plan())
    return target, lake


def objects(target: FileTarget) -> dict[str, dict[str, Any]]:
    found = sorted((target.folder / "manifests").iterdir())
    return {path.stem[3:]: yaml.safe_load(path.read_text()) for path in found}


def driver_pod(made: dict[str, dict[str, Any]], url: str) -> dict[str, Any]:
    """The pod that the CronJob would make, with this server in place of the cluster's own."""
    job = made["cronjob"]["spec"]["jobTemplate"]["spec"]["template"]
    (container,) = job["spec"]["containers"]
    for variable in container["env"]:
        if variable["name"] == "DISTRIBUTARY_SPARK__MASTER":
            variable["value"] = f"k8s://{url}"
    metadata = {**job["metadata"], "name": "games-29384-abcde", "namespace": "data", "uid": "u1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": job["spec"]}


def cluster(games: Games, target: FileTarget, **image: bool) -> Kubernetes:
    dockerfile = (target.folder / "image" / "Dockerfile").read_text()
    folder = games.root / "pods"
    folder.mkdir(mode=0o755)
    jars = ensure_connectors()[0].parent
    environ = image_environment() | {"DISTRIBUTARY_JARS": str(jars), "HOME": "/tmp"}
    inside = (games.root / "lake", games.root / "schemas", jars)
    # as Kubernetes has it: a pod knows its own name, and the service of the driver
    hosts = f"games-driver.data.svc {socket.gethostname()}"
    return Kubernetes(
        Image(dockerfile, **image), folder, environ, inside, hosts, {"games-secrets": SECRETS}
    )


def test_a_driver_and_its_executors_bring_every_record_to_the_bucket(
    games: Games, server: S3Server
) -> None:
    target, lake = installed(games, server, executors=2)
    made = objects(target)
    maps = {made[name]["metadata"]["name"]: made[name] for name in ("configmap", "configmap-spark")}
    with kubernetes(cluster(games, target)) as place:
        pod = driver_pod(made, place.url)
        driver = place.start(pod, maps)
        code = driver.wait(timeout=400)
        name = pod["metadata"]["name"]
        executors = [n for n in place.pods if n != name]
        said = {n: place.log(n)[-3000:] for n in place.pods}
        assert code == 0, f"{said}\n{place.asked[-20:]}"
        # read by the name that Kubernetes filled in: the executors go when their owner goes
        assert any(f"/pods/{name}" in line for line in place.asked), place.asked
        assert len(executors) >= 2, said
        owners = [
            o["metadata"]["ownerReferences"][0]["name"]
            for k, o in place.objects.items()
            if k.startswith("pods/") and k != f"pods/{name}"
        ]
        assert set(owners) <= {name}
        # nothing but what can be mounted anywhere: no volume that several pods write to
        kinds = {kind for v in pod["spec"]["volumes"] for kind in v if kind != "name"}
        assert kinds == {"configMap", "emptyDir"}
    assert "read 60 = written 60" in said[name]
    offsets: Counter[int] = Counter()
    for table in [t for t in folders(lake, server) if t.startswith("silver_")]:
        rows = DeltaTable(f"{lake}/{table}", storage_options=server.options).to_pyarrow_table()
        offsets.update(rows["_offset"].to_pylist())
    assert sorted(offsets) == list(range(60)) and set(offsets.values()) == {1}


def folders(lake: str, server: S3Server) -> list[str]:
    listed = server.files.get_file_info(FileSelector(lake.removeprefix("s3://")))
    return [info.base_name for info in listed]


def test_without_an_entry_for_its_user_the_driver_would_not_start(
    games: Games, server: S3Server
) -> None:
    target, _ = installed(games, server, executors=0)
    made = objects(target)
    maps = {made["configmap"]["metadata"]["name"]: made["configmap"]}
    with kubernetes(cluster(games, target, user_entries=False)) as place:
        pod = driver_pod(made, place.url)
        code = place.start(pod, maps).wait(timeout=300)
        assert code != 0
        assert "SPARK_FAILED" in place.log(pod["metadata"]["name"])


def test_a_pod_alone_brings_every_record_to_the_bucket(games: Games, server: S3Server) -> None:
    target, _ = installed(games, server, executors=0)
    made = objects(target)
    maps = {made["configmap"]["metadata"]["name"]: made["configmap"]}
    with kubernetes(cluster(games, target)) as place:
        pod = driver_pod(made, place.url)
        code = place.start(pod, maps).wait(timeout=300)
        said = place.log(pod["metadata"]["name"])
        assert code == 0, said[-3000:]
    assert "read 60 = written 60" in said
