from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from distributary.config.file.document import parse
from distributary.deploy.file_targets import FileTarget, template
from distributary.deploy.kubernetes_files import (
    USER,
    chart_values,
    dockerfile,
    kubernetes_target,
    object_name,
)
from distributary.deploy.package import WHEEL
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError

Make = Callable[..., Installable]

STAYS = "deploy: {kubernetes: {image: 'registry.example/games:1.0'}}\n"
LARGE = """\
deploy:
  kubernetes:
    image: registry.example/games@sha256:0123
    name: my-games
    namespace: data
    secrets: [games-secrets, more.secrets]
    secret_files: [games-files]
    token_secret: games-token
    pull_secrets: [registry]
    claim: games-lake
    resources: {cpu: 500m, memory: 8Gi, cpu_limit: "4"}
    port: 9000
    service_account_annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/games"}
    node_selector: {pool: data}
    tolerations: [{key: spot, value: "true", effect: NoExecute, seconds: 60}, {operator: Exists}]
    affinity:
      podAntiAffinity:
        preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 1
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {team: data}}
    service_monitor: {interval: 15s, labels: {release: prometheus}}
    network_policy: true
    spark:
      executors: 3
      memory: 4g
      conf: {spark.kubernetes.executor.request.cores: 500m, spark.x: "{{ .Values.image }}"}
"""
TIMED = "deploy: {kubernetes: {image: 'r/x:1', schedule: '0 * * * *', service_account: mine}}\n"
ALL = pytest.mark.parametrize("extra", [STAYS, LARGE, TIMED], ids=["stays", "large", "timed"])
VERSIONS = ("1.32", kubernetes_validate.latest_version())
"""The oldest that is still looked after, and the newest that is known."""
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def written(installable: Make, extra: str, **given: str) -> FileTarget:
    target = kubernetes_target(installable(extra, **given), out=Path("out"))
    target.apply(target.plan())
    return target


def manifests(target: FileTarget) -> dict[str, dict[str, Any]]:
    """Read as Kubernetes' own tools do, by the rules of YAML 1.1."""
    found = sorted((target.folder / "manifests").iterdir())
    return {path.stem[3:]: yaml.safe_load(path.read_text()) for path in found}


def pod_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if "cronjob" in objects:
        pod = objects["cronjob"]["spec"]["jobTemplate"]["spec"]["template"]
    else:
        pod = objects["deployment"]["spec"]["template"]
    return dict(pod["spec"])


@ALL
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schema_of_kubernetes(
    installable: Make, extra: str, version: str
) -> None:
    objects = manifests(written(installable, extra))
    assert objects
    for each in objects.values():
        assert LABEL.fullmatch(each["metadata"]["name"])
        if each["kind"] == "ServiceMonitor":
            # a custom resource, whose schema is not Kubernetes' own
            continue
        kubernetes_validate.validate(each, version, strict=True)
    if "configmap-spark" in objects:
        template = yaml.safe_load(objects["configmap-spark"]["data"]["executor.yaml"])
        kubernetes_validate.validate(template, version, strict=True)


@ALL
def test_nobody_is_root_and_nothing_is_written_to_the_image(installable: Make, extra: str) -> None:
    pod = pod_of(manifests(written(installable, extra)))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_a_pod_that_stays_is_asked_how_it_is(installable: Make) -> None:
    objects = manifests(written(installable, STAYS))
    deployment = objects["deployment"]["spec"]
    assert deployment["replicas"] == 1 and deployment["strategy"] == {"type": "Recreate"}
    (container,) = pod_of(objects)["containers"]
    assert container["args"] == [
        *("up", "/etc/distributary/pipeline.yaml", "--listen", "0.0.0.0:8080"),
        *("--log-format", "json"),
    ]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/live", "/live", "/ready"]
    assert {probe["port"] for probe in probes} == {container["ports"][0]["name"]}
    # only who starts executors may talk to Kubernetes
    assert pod_of(objects)["automountServiceAccountToken"] is False
    assert "role" not in objects


def test_a_run_by_the_clock_ends_and_never_overlaps(installable: Make) -> None:
    objects = manifests(written(installable, TIMED))
    spec = objects["cronjob"]["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("0 * * * *", "Forbid")
    pod = pod_of(objects)
    assert pod["serviceAccountName"] == "mine" and "serviceaccount" not in objects
    assert pod["containers"][0]["args"][-1] == "--available-now"
    assert "livenessProbe" not in pod["containers"][0]


def test_executors_are_pods_that_find_the_driver(installable: Make) -> None:
    objects = manifests(written(installable, LARGE))
    lines = objects["configmap-spark"]["data"]["spark-defaults.conf"].splitlines()
    conf = dict(line.split(" ", 1) for line in lines)
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.driver.host"] == "my-games-driver.data.svc"
    assert objects["service-driver"]["metadata"]["name"] == "my-games-driver"
    assert objects["service-driver"]["spec"]["clusterIP"] == "None"
    (container,) = pod_of(objects)["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["DISTRIBUTARY_SPARK__MASTER"].startswith("k8s://")
    assert "DISTRIBUTARY_TOKEN" in env and env["DISTRIBUTARY_TOKEN"] is None
    # the name of the pod is known to Kubernetes only, which fills it in
    (pod_name,) = [each for each in container["env"] if "fieldRef" in (each.get("valueFrom") or {})]
    assert pod_name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    submitted = env["PYSPARK_SUBMIT_ARGS"]
    assert f"spark.kubernetes.driver.pod.name=$({pod_name['name']}) " in submitted
    names = [each["name"] for each in container["env"]]
    assert names.index(pod_name["name"]) < names.index("PYSPARK_SUBMIT_ARGS")
    (rule,) = objects["role"]["rules"]
    assert "secrets" not in rule["resources"] and "*" not in str(rule)


def executor_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return dict(yaml.safe_load(objects["configmap-spark"]["data"]["executor.yaml"]))


def test_executors_run_where_the_pod_runs(installable: Make) -> None:
    objects = manifests(written(installable, LARGE))
    for spec in (pod_of(objects), executor_of(objects)["spec"]):
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["nodeSelector"] == {"pool": "data"}
        assert spec["tolerations"] == [
            {
                "key": "spot",
                "operator": "Equal",
                "value": "true",
                "effect": "NoExecute",
                "tolerationSeconds": 60,
            },
            {"operator": "Exists"},
        ]
        assert "podAntiAffinity" in spec["affinity"]
    annotations = objects["serviceaccount"]["metadata"]["annotations"]
    assert annotations == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/games"}


@pytest.mark.parametrize(
    ("spark", "overhead"),
    [
        ("executors: 1", "1408m"),
        ("executors: 1, cores: 4", "4480m"),
        ("executors: 1, cores: 4, memory_overhead: 2g", "2g"),
    ],
)
def test_python_workers_have_memory_beside_the_jvm(
    installable: Make, spark: str, overhead: str
) -> None:
    extra = f"deploy: {{kubernetes: {{image: r/x, claim: c, spark: {{{spark}}}}}}}\n"
    objects = manifests(written(installable, extra))
    lines = objects["configmap-spark"]["data"]["spark-defaults.conf"].splitlines()
    assert f"spark.executor.memoryOverhead {overhead}" in lines


def test_metrics_are_collected_with_the_token(installable: Make) -> None:
    objects = manifests(written(installable, LARGE))
    monitor, service = objects["servicemonitor"], objects["service"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["authorization"]["credentials"] == {"name": "games-token", "key": "token"}
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15000ms")
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


OTHERS = LARGE.replace("release: prometheus", "app.kubernetes.io/instance: other")


@pytest.mark.parametrize("extra", [STAYS, LARGE, TIMED, OTHERS])
def test_a_removal_finds_every_object(installable: Make, extra: str) -> None:
    target = written(installable, extra)
    (command,) = target.last_steps
    kinds = command.split()[2].split(",")
    selector = dict([command.rpartition(" ")[2].split("=")])
    for each in manifests(target).values():
        # pods, services, deployments and cron jobs
        listed = each["kind"] in ("Service", "Deployment") and "all" in kinds
        assert listed or each["kind"].lower() in kinds
        assert selector.items() <= each["metadata"]["labels"].items()
    assert ("servicemonitor" in kinds) is ("service_monitor" in extra)


@pytest.mark.parametrize(
    "name", ["x.y", "spark.a b", "spark.a=b", '"spark.a\\nspark.master local"']
)
def test_a_name_that_would_be_more_than_a_name_is_refused(installable: Make, name: str) -> None:
    with pytest.raises(ConfigError):
        installable(f"deploy: {{spark_submit: {{conf: {{{name}: c}}}}}}\n")


def test_a_policy_admits_only_probes_and_executors(installable: Make) -> None:
    objects = manifests(written(installable, LARGE))
    pod = objects["networkpolicy"]["spec"]
    probes, executors = pod["ingress"]
    assert probes == {"ports": [{"port": 9000, "protocol": "TCP"}]}
    assert [port["port"] for port in executors["ports"]] == [7078, 7079]
    (source,) = executors["from"]
    labels = executor_of(objects)["metadata"]["labels"]
    assert source["podSelector"]["matchLabels"] == labels
    assert objects["networkpolicy-executors"]["spec"]["podSelector"]["matchLabels"] == labels
    # an executor must not become an address of the driver
    assert not objects["service-driver"]["spec"]["selector"].items() <= labels.items()
    alone = manifests(written(installable, STAYS.replace("'}", "', network_policy: true}")))
    assert "networkpolicy-executors" not in alone


@pytest.mark.parametrize(
    "settings",
    [
        "service_monitor: {}",
        "service_monitor: {}, token_secret: t, schedule: '0 * * * *'",
        "service_account: mine, service_account_annotations: {a: b}",
        "tolerations: [{operator: Exists, value: a}]",
        "tolerations: [{value: a}]",
        "tolerations: [{key: a, seconds: 3}]",
    ],
)
def test_settings_without_effect_are_refused(installable: Make, settings: str) -> None:
    with pytest.raises(ConfigError):
        installable(f"deploy: {{kubernetes: {{image: r/x, {settings}}}}}\n")


@pytest.mark.parametrize(
    ("lake", "extra", "mounted"),
    [
        ("s3://bucket/lake", "", False),
        ("/lake/games", "", True),
        ("file:///lake", "", True),
        ("${env:LAKE_PATH}", "", True),
        # of all that is in a bucket, the schemas are not
        ("gs://bucket/lake", "registry: {path: /lake/schemas}\n", True),
    ],
)
def test_a_volume_is_mounted_only_where_something_is_on_it(
    installable: Make, lake: str, extra: str, mounted: bool
) -> None:
    objects = manifests(written(installable, LARGE + extra, lake=lake))
    pod = pod_of(objects)
    executor = yaml.safe_load(objects["configmap-spark"]["data"]["executor.yaml"])["spec"]
    for spec in (pod, executor):
        claims = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
        mounts = [m["name"] for m in spec["containers"][0]["volumeMounts"]]
        assert (bool(claims), "lake" in mounts) == (mounted, mounted)


def test_secrets_are_named_and_never_held(installable: Make) -> None:
    target = written(installable, LARGE)
    (container,) = pod_of(manifests(target))["containers"]
    names = [source["secretRef"]["name"] for source in container["envFrom"]]
    assert names == ["games-secrets", "more.secrets"]
    config = manifests(target)["configmap"]["data"]["pipeline.yaml"]
    assert "${env:KAFKA_SECRET}" in config


def test_comments_of_the_file_stay_at_home(installable: Make) -> None:
    extra = f"{STAYS}# password: canary\nspark: {{driver_memory: 2g}}  # canary\n"
    pipeline = installable(extra)
    target = kubernetes_target(pipeline, out=Path("out"))
    target.apply(target.plan())
    config = manifests(target)["configmap"]["data"]["pipeline.yaml"]
    assert read_tree(config) == read_tree(pipeline.text)
    texts = [path.read_text() for path in target.folder.rglob("*") if path.is_file()]
    assert not [text for text in texts if "canary" in text]


def read_tree(text: str) -> object:
    tree, _ = parse(text, file="x")
    return tree.plain()


def test_a_secret_in_clear_is_refused(installable: Make) -> None:
    extra = f"{STAYS}registry: {{url: 'http://h', token: canary}}\n"
    with pytest.raises(ConfigError) as caught:
        kubernetes_target(installable(extra))
    assert "canary" not in str(caught.value)


@ALL
def test_the_chart_with_its_values_is_the_manifests(installable: Make, extra: str) -> None:
    target = written(installable, extra)
    chart = target.folder / "chart"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    plain = manifests(target)
    namespace = next(iter(plain.values()))["metadata"]["namespace"]
    rendered = {
        path.stem: yaml.safe_load(render(path.read_text(), values, namespace))
        for path in (chart / "templates").iterdir()
    }
    # lists of the chart are JSON in the text of the executor's pod
    for objects in (rendered, plain):
        data = objects.get("configmap-spark", {}).get("data", {})
        data.update({k: yaml.safe_load(v) for k, v in data.items() if k == "executor.yaml"})
    assert rendered == plain


def render(template: str, values: dict[str, Any], namespace: str) -> str:
    """The four kinds of places that our templates have, as Helm fills them in."""
    known = {".Release.Namespace": namespace} | {f".Values.{k}": v for k, v in values.items()}

    def fill(match: re.Match[str]) -> str:
        source, as_json = match[1].removesuffix(" | toJson"), match[1].endswith(" | toJson")
        if source == '"{{"':
            return "{{"
        return json.dumps(known[source]) if as_json else str(known[source])

    return re.sub(r"\{\{ (.*?) \}\}", fill, template)


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no Helm here")
@ALL
def test_helm_renders_the_manifests(installable: Make, own_folder: Path, extra: str) -> None:
    target = written(installable, extra)
    plain = manifests(target)
    namespace = next(iter(plain.values()))["metadata"]["namespace"]
    chart = str(target.folder / "chart")
    environ = {"PATH": os.environ["PATH"], "HOME": str(own_folder)}
    for words in (("lint", chart), ("template", "games", chart, "--namespace", namespace)):
        done = subprocess.run(
            ["helm", *words], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rendered = {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)
    }
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in plain.values()}
    for objects in (rendered, by_kind):
        for key, each in objects.items():
            if "executor.yaml" in each.get("data", {}):
                read = yaml.safe_load(each["data"]["executor.yaml"])
                objects[key] = each | {"data": each["data"] | {"executor.yaml": read}}
    assert rendered == by_kind


@ALL
def test_the_schema_of_the_values_takes_them_and_refuses_others(
    installable: Make, extra: str
) -> None:
    target = written(installable, extra)
    schema = json.loads((target.folder / "chart" / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    values = yaml.safe_load((target.folder / "chart" / "values.yaml").read_text())
    Draft7Validator(schema).validate({**values, "global": {}})
    for wrong in (
        {"image": "a b"},
        {"resources": {"limits": {"memory": "lots"}}},
        {"banana": 1},
        {"secrets": ["x"]},
    ):
        with pytest.raises(ValidationError):
            Draft7Validator(schema).validate({**values, **wrong})


@pytest.mark.parametrize(
    "name", ["games", "Games", "a.b", "x" * 100, "-".join("abcdefgh" * 6), "1", "a_b", "A"]
)
def test_every_pipeline_has_a_name_of_its_own(installable: Make, name: str) -> None:
    settings = installable(STAYS).deploy.kubernetes
    assert settings is not None
    made = object_name(name, settings)
    assert LABEL.fullmatch(made) and len(made) <= 40
    assert made != object_name(f"{name}2", settings)
    assert (made == name) == (name in ("games", "1"))


def test_values_hold_no_schedule_where_there_is_none(installable: Make) -> None:
    settings = installable(STAYS).deploy.kubernetes
    assert settings is not None
    assert "schedule" not in chart_values(settings)


def test_the_image_runs_as_nobody_special() -> None:
    lines = dockerfile("python:3.11-slim").splitlines()
    users = [line for line in lines if line.startswith("USER ")]
    assert users == [f"USER {USER}:{USER}"] and USER > 1000
    # an entry for the user, and a folder that can be written in a pod whose image cannot
    assert f"distributary:x:{USER}:{USER}:" in dockerfile("python:3.11-slim")
    assert [line for line in lines if line.startswith("WORKDIR ")] == ["WORKDIR /tmp"]
    assert not [line for line in lines if re.search(r"secret|password|token", line, re.I)]


def test_the_image_fetches_nothing_without_a_checksum() -> None:
    text = dockerfile("python:3.11-slim@sha256:0123")
    installs = re.findall(r"pip install ([^&\n]+)", text.replace("\\\n", " "))
    assert len(installs) == 3
    for each in installs[:2]:
        assert "--require-hashes" in each and ".lock" in each
    # what builds source packages is not fetched behind the lock's back
    assert "--no-build-isolation" in installs[1]
    assert "--no-deps" in installs[2] and "--no-index" in installs[2] and WHEEL in installs[2]
    assert "distributary==" not in text
    assert "ARG BASE_IMAGE=python:3.11-slim@sha256:0123\nFROM ${BASE_IMAGE}\n" in text


def test_the_base_image_is_the_users_choice(installable: Make) -> None:
    extra = "deploy: {kubernetes: {image: r/x, base_image: 'mirror.example/python@sha256:0123'}}\n"
    target = written(installable, extra)
    text = (target.folder / "image" / "Dockerfile").read_text()
    assert "ARG BASE_IMAGE=mirror.example/python@sha256:0123\n" in text
    # the wheel is made before the image that holds it
    steps = [step.split()[:2] for step in target.next_steps]
    assert steps.index(["distributary", "package"]) < steps.index(["docker", "build"])


def run_entrypoint(folder: Path, *arguments: str, **environ: str) -> list[str]:
    """The entry point with programs that only say how they were called."""
    (folder / "entrypoint.sh").write_text(template("entrypoint.sh"))
    for name in ("java", "distributary"):
        script = folder / name
        script.write_text(
            f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "token=${{DISTRIBUTARY_TOKEN:-}}"\n'
        )
        script.chmod(0o755)
    python = folder / "python"
    python.write_text('#!/bin/sh\ncase "$2" in *secrets*) echo random;; *) echo /spark;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", folder / "entrypoint.sh", *arguments],
        env={"PATH": f"{folder}:/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_entry_point_starts_commands_and_executors(own_folder: Path) -> None:
    assert run_entrypoint(own_folder, "up", "a b.yaml") == [
        *("distributary", "up", "a b.yaml", "token=random")
    ]
    given = run_entrypoint(own_folder, "up", "x", DISTRIBUTARY_TOKEN="mine")
    assert given[-1] == "token=mine"
    spark = {
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=$(touch owned)",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_DRIVER_URL": "spark://d",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "DISTRIBUTARY_JARS": "/jars",
    }
    said = run_entrypoint(own_folder, "executor", **spark)
    assert said[:6] == ["java", "-Da=b c", "-Dd=$(touch owned)", "-Xms2g", "-Xmx2g", "-cp"]
    assert said[6] == "/spark/jars/*:/jars/*"
    assert said[7].endswith("KubernetesExecutorBackend")
    assert not (own_folder / "owned").exists()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kubectl_reads_the_manifests(installable: Make, own_folder: Path) -> None:
    target = written(installable, LARGE)
    folder = target.folder / "manifests"
    names = sorted(path.name for path in folder.iterdir())
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": names}))
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(own_folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    assert len(found) == len(names)
