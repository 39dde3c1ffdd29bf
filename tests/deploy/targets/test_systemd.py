from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distributary.config.deploy import Systemd
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.scripts import service_unit, systemd_target, timer_unit, unit_folder
from distributary.errors import DeployError, ErrorCode

Make = Callable[..., Installable]


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_a_service_that_stays(installable: Make, own_folder: Path) -> None:
    pipeline = installable()
    unit = lines(service_unit(pipeline, Systemd(listen="127.0.0.1:9108")))
    up = f"{sys.executable} -P -m distributary up {pipeline.path} --log-format json"
    assert f"ExecStart={up} --listen 127.0.0.1:9108" in unit
    for wanted in (
        "Type=exec",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "SuccessExitStatus=143",
        "NoNewPrivileges=yes",
        f"WorkingDirectory={own_folder}",
        "WantedBy=default.target",
    ):
        assert wanted in unit
    assert not [line for line in unit if line.startswith(("User=", "ProtectSystem="))]


def test_a_service_of_the_system_is_locked_up(installable: Make) -> None:
    unit = lines(service_unit(installable(), Systemd(user=False, run_as="etl", memory_max="8G")))
    for wanted in ("User=etl", "ProtectSystem=full", "CapabilityBoundingSet=", "MemoryMax=8G"):
        assert wanted in unit
    assert "WantedBy=multi-user.target" in unit
    assert unit_folder(user=False) == Path("/etc/systemd/system")


def test_a_timer_starts_a_run_that_ends(installable: Make) -> None:
    settings = Systemd(schedule="hourly")
    unit = lines(service_unit(installable(), settings))
    assert "Type=oneshot" in unit
    assert next(line for line in unit if line.startswith("ExecStart=")).endswith("--available-now")
    assert "[Install]" not in unit
    assert {"OnCalendar=hourly", "Persistent=true"} <= set(lines(timer_unit("games", settings)))


def test_secrets_stay_in_their_file(installable: Make) -> None:
    pipeline = installable("deploy: {systemd: {environment_file: /etc/games.env}}\n")
    target = systemd_target(pipeline, out=Path("units"))
    assert "EnvironmentFile=/etc/games.env" in lines(target.artifacts[0].text)
    assert "KAFKA_SECRET" not in target.artifacts[0].text
    assert target.next_steps[0] == "chmod 0600 /etc/games.env"


HOSTILE = 'a b%n$HOME"q\\x;é.yaml'


def test_a_path_cannot_add_settings_to_the_unit(installable: Make) -> None:
    pipeline = replace(installable(), path=Path("/srv/a\nExecStartPre=/bin/evil\n.yaml"))
    with pytest.raises(DeployError) as refused:
        service_unit(pipeline, Systemd())
    assert refused.value.code is ErrorCode.DEPLOY_UNFIT


def test_hostile_names_stay_one_word(installable: Make) -> None:
    pipeline = installable(file=HOSTILE)
    unit = service_unit(pipeline, Systemd())
    (start,) = [line for line in lines(unit) if line.startswith("ExecStart=")]
    assert 'a b%%n$$HOME\\"q\\\\x;é.yaml" --log-format' in start


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize(
    "settings",
    [
        Systemd(listen="127.0.0.1:9108", memory_max="8G"),
        Systemd(user=False, run_as="daemon", environment_file="/etc/games.env"),
        Systemd(schedule="*-*-* 02:00:00"),
    ],
    ids=["user", "system", "timer"],
)
def test_systemd_itself_finds_nothing_wrong(
    settings: Systemd, installable: Make, own_folder: Path
) -> None:
    pipeline = installable(f"deploy: {{systemd: {settings.model_dump_json()}}}\n", file=HOSTILE)
    target = systemd_target(pipeline, out=own_folder / "units")
    target.apply(target.plan())
    units = sorted((own_folder / "units").iterdir())
    kind = ["--user"] if settings.user else []
    checked = subprocess.run(
        ["systemd-analyze", "verify", *kind, *map(str, units)],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(own_folder)},
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
