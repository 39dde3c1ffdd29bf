"""What starting and stopping do, with scripts in place of Java."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.errors import ConfigError, DistributaryError, ErrorCode, SetupError
from distributary_lab.services import services as module
from distributary_lab.services.processes import HOST, Running, running
from distributary_lab.services.servers import Artifacts, JavaService, KafkaService, RegistryService
from distributary_lab.services.services import Services, ServiceState, remember, remembered
from tests.lab.services.marked import start_marked
from tests.services.secured import SecuredServices

# formats like the real one, and then is a broker or a registry that only sleeps
SLEEPING_JAVA = """
if formatting:
    pathlib.Path("kafka/data").mkdir()
    pathlib.Path("kafka/data/meta.properties").touch()
else:
    print("ready", flush=True)
    time.sleep(300)
"""
FAILING_JAVA = """
print("starting")
if not formatting:
    sys.exit("no room on the moon")
"""
UNFORMATTING_JAVA = """
if formatting:
    sys.exit("bad disk")
time.sleep(300)
"""
HEAD = f"""#!{sys.executable}
import pathlib, sys, time
told = [pathlib.Path(word[1:]).read_text() for word in sys.argv if word.startswith("@")]
formatting = any("kafka.tools.StorageTool" in words for words in (*sys.argv, *told))
if formatting:
    pathlib.Path("seen.txt").write_text(repr([sys.argv, told]))
"""


class Java:
    """A script that stands for Java; `answering` says which services speak."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.answering = {"kafka", "registry"}
        home.joinpath("bin").mkdir(parents=True)
        home.joinpath("release").write_text('JAVA_VERSION="17.0.1"\n')
        self.becomes(SLEEPING_JAVA)

    def becomes(self, script: str) -> None:
        program = self.home / "bin" / "java"
        program.write_text(HEAD + script)
        program.chmod(0o755)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    made = Java(tmp_path / "java")
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"")
    monkeypatch.setenv("JAVA_HOME", str(made.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "ensure_artifacts", lambda say: Artifacts((jar,), jar))

    def answers(service: JavaService) -> bool:
        started = service.output.exists() and service.output.stat().st_size > 0
        return started and service.name in made.answering

    for kind in (KafkaService, RegistryService):
        monkeypatch.setattr(kind, "answers", answers)
    return made


def refused(services: Services) -> DistributaryError:
    with pytest.raises(DistributaryError) as caught:
        services.start()
    assert caught.value.next_step
    return caught.value


def pids(folder: Path) -> dict[str, int]:
    return {name: each.pid for name, each in running(folder).items()}


def test_a_second_start_changes_nothing(java: Java, folder: Path) -> None:
    services = Services(folder)
    said: list[str] = []
    assert services.start(said.append) == ("kafka", "registry")
    before = pids(folder)
    assert any(services.kafka in line for line in said)
    assert set(before) == {"kafka", "registry"}
    again = Services(folder)
    assert again.start() == ()
    assert (again.kafka, again.registry) == (services.kafka, services.registry)
    assert pids(folder) == before
    assert again.stop() == ("kafka", "registry")
    assert running(folder) == {}
    assert services.stop() == ()


@pytest.mark.parametrize("name", ["kafka", "registry"])
def test_only_what_died_is_started_again(java: Java, folder: Path, name: str) -> None:
    services = Services(folder)
    services.start()
    before = pids(folder)
    services._kill(name)
    assert Services(folder).start() == (name,)
    after = pids(folder)
    assert {each for each in after if after[each] != before[each]} == {name}
    assert running(folder)[name].port == int(
        {"kafka": services.kafka, "registry": services.registry}[name].split(":")[-1].split("/")[0]
    )


def test_usual_ports_come_back_after_a_stop(java: Java, folder: Path) -> None:
    services = Services(folder)
    services.start()
    assert remembered(folder) is not None
    services.stop()
    assert remembered(folder) is None


def test_a_port_that_is_taken_is_named(java: Java, folder: Path) -> None:
    with socket.create_server((HOST, 0)) as stranger:
        port = stranger.getsockname()[1]
        error = refused(Services(folder, registry_port=port))
    assert error.code is ErrorCode.PORT_TAKEN
    assert error.context["port"] == str(port)
    assert str(port) in error.what
    assert running(folder) == {}
    assert remembered(folder) is None


def test_what_runs_is_not_moved_to_another_port(java: Java, folder: Path) -> None:
    services = Services(folder)
    services.start()
    before = pids(folder)
    error = refused(Services(folder, kafka_port=1))
    assert isinstance(error, ConfigError)
    assert pids(folder) == before


def test_a_start_that_fails_shows_the_last_words_and_leaves_nothing(
    java: Java, folder: Path
) -> None:
    java.becomes(FAILING_JAVA)
    java.answering = set()
    error = refused(Services(folder))
    assert error.code is ErrorCode.SERVICE_FAILED
    assert "no room on the moon" in error.evidence
    assert Path(error.where).parent == folder / "logs"
    assert running(folder) == {}
    assert remembered(folder) is None


def test_a_service_that_never_answers(
    java: Java, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.2)
    java.answering = {"registry"}
    error = refused(Services(folder))
    assert error.code is ErrorCode.SERVICE_FAILED
    assert error.where.endswith("kafka.log")
    assert running(folder) == {}


def test_a_broker_without_a_disk(java: Java, folder: Path) -> None:
    java.becomes(UNFORMATTING_JAVA)
    error = refused(Services(folder))
    assert error.code is ErrorCode.SERVICE_FAILED
    assert "bad disk" in error.evidence
    assert running(folder) == {}


def test_what_ran_before_survives_a_failed_start(java: Java, folder: Path) -> None:
    services = Services(folder)
    services.start()
    before = pids(folder)
    services.kill_registry()
    java.becomes(FAILING_JAVA)
    java.answering = {"kafka"}
    refused(Services(folder))
    assert pids(folder) == {"kafka": before["kafka"]}
    java.becomes(SLEEPING_JAVA)
    java.answering = {"kafka", "registry"}
    again = Services(folder)
    assert again.start() == ("registry",)
    assert again.registry == services.registry


def test_a_restart_is_of_one_service_only(java: Java, folder: Path) -> None:
    services = Services(folder)
    services.start()
    before = pids(folder)
    services.kill_registry()
    services.restart_kafka()
    assert set(pids(folder)) == {"kafka"}
    assert pids(folder)["kafka"] != before["kafka"]
    services.restart_registry()
    assert set(pids(folder)) == {"kafka", "registry"}


def test_the_log_of_the_run_before_is_kept(java: Java, folder: Path) -> None:
    services = Services(folder)
    services.start()
    folder.joinpath("logs", "kafka.log").write_text("why it died")
    services.restart_kafka()
    assert folder.joinpath("logs", "kafka.previous.log").read_text() == "why it died"


def test_security_cannot_be_added_later(java: Java, folder: Path) -> None:
    with Services(folder) as services:
        assert services.kafka
    assert isinstance(refused(SecuredServices(folder)), ConfigError)
    assert running(folder) == {}


def test_secrets_are_not_shown_and_not_readable_by_others(java: Java, folder: Path) -> None:
    with SecuredServices(folder) as services:
        security = services.security
        assert security.password not in repr(security)
        secrets = [p for p in folder.rglob("*") if p.is_file() and p.suffix in {".key", ".json"}]
        secrets = [p for p in secrets if p.parent.name == "security"]
        secrets.append(folder / "kafka" / "server.properties")
        assert len(secrets) > 2
        assert all(p.stat().st_mode & 0o077 == 0 for p in secrets)
    assert SecuredServices(folder).start()


def test_no_password_is_on_a_command_line(java: Java, folder: Path) -> None:
    with SecuredServices(folder) as services:
        password = services.security.password
        arguments, told = ast.literal_eval((folder / "seen.txt").read_text())
        assert not [word for word in arguments if password in word]
        assert password in told[0]
        lines = [line for each in running(folder).values() for line in command_lines(each)]
        assert lines and not [line for line in lines if password in line]
        kept = [p for p in folder.rglob("*") if p.is_file() and password in p.read_text("latin-1")]
        assert {p.name for p in kept} == {"password.json", "server.properties", "seen.txt"}


def command_lines(service: Running) -> list[str]:
    return [" ".join(process.cmdline()) for process in service.processes]


def test_what_services_write_is_for_their_user_alone(java: Java, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    with Services(folder):
        assert folder.stat().st_mode & 0o077 == 0


def test_folder_of_another_user_is_refused(
    java: Java, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(SetupError) as caught:
        Services(folder).start()
    assert caught.value.code is ErrorCode.SERVICE_FAILED


def test_status_of_what_runs_though_its_file_is_damaged(java: Java, folder: Path) -> None:
    started = start_marked(folder, "registry", 18081)
    folder.joinpath("ports.json").write_text("{")
    java.answering = set()
    found = Services(folder).status()
    assert found["kafka"].state is ServiceState.DOWN
    assert found["registry"].state is ServiceState.SILENT
    assert found["registry"].pid == started.pid
    assert "127.0.0.1:18081" in (found["registry"].address or "")
    java.answering = {"registry"}
    folder.joinpath("logs").mkdir()
    folder.joinpath("logs", "registry.out").write_text("ready")
    assert Services(folder).status()["registry"].state is ServiceState.UP
    remember(folder, {"kafka": 1, "registry": 2, "controller": 3})
    assert "127.0.0.1:18081" in (Services(folder).status()["registry"].address or "")


def test_a_folder_that_was_deleted_is_not_made_again(folder: Path) -> None:
    start_marked(folder, "kafka", 9092)
    folder.joinpath("kafka.out").unlink()
    folder.rmdir()
    assert Services(folder).stop() == ("kafka",)
    assert Services(folder).wipe() == ()
    assert not folder.exists()


def test_dev_up_needs_no_package_of_the_developers() -> None:
    without = "import sys; sys.modules['cryptography'] = None"
    script = f"{without}; import distributary_lab.services.services"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_addresses_are_known_after_the_start_only(folder: Path) -> None:
    with pytest.raises(SetupError) as caught:
        assert Services(folder).kafka
    assert caught.value.code is ErrorCode.NOT_FOUND
