from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from distributary.cli.command_line import application
from distributary.config.load import load
from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.spark.jars import Lock, ensure
from distributary_lab.services.servers import LOCK, ensure_artifacts

ROOT = Path(__file__).parents[3]

# stands for `java ... org.apache.ivy.Main`: copies the files to where Ivy was told to put them
FAKE_IVY = """#!{python}
import pathlib, shutil, sys
arguments = dict(zip(sys.argv, sys.argv[1:]))
shutil.copytree({source!r}, pathlib.Path(arguments["-retrieve"]).parent)
"""


def dependencies() -> dict[str, str]:
    lock = ElementTree.parse(LOCK.folder / "ivy.xml")
    return {d.get("name", ""): d.get("rev", "") for d in lock.iter("dependency")}


def archive_with(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def test_both_halves_of_the_lock_name_the_same_files() -> None:
    named = {f"{name}-{revision}.jar" for name, revision in dependencies().items()}
    app = f"apicurio-registry-app-{dependencies()['apicurio-registry-app']}"
    assert named - {f"{app}.jar"} | {f"{app}-all.tar.gz"} == set(LOCK.sums)


def test_nothing_is_resolved_through_a_dependency() -> None:
    lock = ElementTree.parse(LOCK.folder / "ivy.xml")
    assert {each.get("transitive") for each in lock.iter("dependency")} == {"false"}


def test_containers_are_of_the_same_versions_and_on_loopback_only() -> None:
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    versions = dependencies()
    named = {"kafka": versions["kafka_2.13"], "registry": versions["apicurio-registry-app"]}
    for name, version in named.items():
        assert services[name]["image"].rpartition(":")[2] == version
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert ports == ["127.0.0.1:9092:9092", "127.0.0.1:8081:8081", "127.0.0.1:8642:8642"]
    # nobody reads tables that are served to a network without a token
    assert "DISTRIBUTARY_TOKEN" in services["page"]["environment"]


OURS = ["games", "pipeline", "orders", "orders-unframed", "orders-pipeline", "page"]


@pytest.mark.parametrize("name", OURS)
def test_containers_of_ours_are_started_with_words_that_exist(name: str) -> None:
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    words = [word for word in services[name]["command"].split() if not word.startswith("/")]
    asked = [word for word in words if word.startswith("--")]
    verb = words[: 2 if words[0] == "produce" else 1]
    shown = CliRunner().invoke(application(), [*verb, "--help"])
    assert shown.exit_code == 0
    assert all(option in shown.output for option in asked)


@pytest.mark.parametrize(
    ("name", "service"), [("games", "pipeline"), ("orders", "orders-pipeline")]
)
def test_the_pipelines_of_the_containers_are_valid(name: str, service: str) -> None:
    found = load(ROOT / "examples" / "compose" / f"{name}.yaml").config
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    assert isinstance(found.source, KafkaSourceConfig)
    listeners = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INSIDE://{found.source.bootstrap_servers}" in listeners
    assert found.lake.address in " ".join(services[service]["volumes"])
    assert services[service]["command"] == f"run /etc/distributary/{name}.yaml"
    assert service in services["page"]["depends_on"]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """A small lock with a jar and an archive, and a script in place of Java."""
    archive = archive_with({"app-1-runner.jar": b"run", "lib/one.jar": b"lib"})
    source, folder, home = tmp_path / "source", tmp_path / "lock", tmp_path / "java"
    files = {"broker-1.jar": b"broker", "app-1-all.tar.gz": archive}
    for each in (source, folder, home / "bin"):
        each.mkdir(parents=True)
    for name, content in files.items():
        source.joinpath(name).write_bytes(content)
    sums = (f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in files.items())
    folder.joinpath("SHA256SUMS").write_text("".join(sums))
    folder.joinpath("ivy.xml").write_text("<ivy-module/>")
    home.joinpath("release").write_text('JAVA_VERSION="17.0.1"\n')
    program = home / "bin" / "java"
    program.write_text(FAKE_IVY.format(python=sys.executable, source=str(source)))
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return Lock(folder, what="the files", size="1 kB")


def test_an_archive_is_unpacked_once(lock: Lock, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / lock.key
    paths = ensure(lock, cache)
    assert [path.name for path in paths] == ["app-1-all", "broker-1.jar"]
    assert (cache / "app-1-all" / "lib" / "one.jar").read_bytes() == b"lib"
    assert not list(cache.glob("*.tar.gz"))
    assert [path.name for path in cache.parent.iterdir() if path.suffix != ".lock"] == [lock.key]
    (cache / "app-1-all" / "mark").touch()
    assert ensure(lock, cache) == paths
    assert (cache / "app-1-all" / "mark").exists()


def test_broker_and_registry_are_told_apart(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary_lab.services.servers.LOCK", lock)
    found = ensure_artifacts(cache=tmp_path / "cache")
    assert [path.name for path in found.kafka] == ["broker-1.jar"]
    assert found.registry.read_bytes() == b"run"


def test_old_releases_of_python_have_no_filter_for_archives(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(
        tarfile.TarFile, "extraction_filter", staticmethod(lambda member, path: member)
    )
    assert all(path.exists() for path in ensure(lock, tmp_path / "cache"))
