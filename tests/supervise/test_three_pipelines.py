"""Three real pipelines, one of them broken: two settle batches, the third is tried again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from distributary.observe.ledger.ledger import Ledger
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.supervise.children import gone
from tests.waiting import eventually

EXTRA = """
trigger: {trigger}
run: {{batch_attempts: 1}}
restart: {{initial: 2s, longest: 3s}}
spark: {{driver_memory: 512m, master: "local[1]"}}
"""


def made(folder: Path, name: str, trigger: str) -> tuple[Path, Games]:
    root = folder / name
    root.mkdir()
    games = Games(root, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file(tables="{each: 'silver_{type}'}", extra=EXTRA.format(trigger=trigger))
    file.write_text(file.read_text().replace("name: games", f"name: {name}"))
    return file, games


@pytest.mark.slow
@pytest.mark.spark
def test_one_is_broken_and_the_others_go_on(tmp_path: Path) -> None:
    good = {name: made(tmp_path, name, "continuous") for name in ("first", "second")}
    for _, games in good.values():
        games.send_all()
    # nobody has ever written its source
    broken, _ = made(tmp_path, "broken", "available_now")
    files = [str(file) for file in (*(file for file, _ in good.values()), broken)]
    log = tmp_path / "log.jsonl"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "distributary",
                "up",
                *files,
                "--listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=said,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        )
    try:
        document, family = _watched(process, log)
        out, _ = process.communicate(timeout=180)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143
    assert [pid for pid in family if not gone(pid, seconds=120)] == []
    _check_end(json.loads(out), document, log)
    for name, (_, games) in good.items():
        totals = Ledger(str(games.lake)).totals(name)
        assert totals.balanced and totals.written == 10
        assert len(games.rows("silver_chess_game")) == 5


def _watched(process: subprocess.Popen[bytes], log: Path) -> tuple[dict[str, Any], list[int]]:
    """Waits for what should happen, then asks for a stop; what was seen, and who ran."""
    eventually(lambda: "listening at" in log.read_text(), seconds=60)
    found = re.search(r"listening at (http://[0-9.:]+)", log.read_text())
    assert found is not None
    client = httpx2.Client(base_url=found[1], trust_env=False)

    def status() -> dict[str, Any]:
        answer = client.get("/status").json()
        return {each["pipeline"]: each for each in answer["pipelines"]}

    def happened() -> bool:
        assert process.poll() is None, log.read_text()
        now = status()
        settled = all(now[name]["batches"] for name in ("first", "second"))
        return bool(settled and now["broken"]["restarts"])

    eventually(happened, seconds=400)
    ready = client.get("/ready")
    assert ready.status_code == 503
    assert set(ready.json()["not_ready"]) == {"broken"}
    assert client.get("/live").status_code == 200
    family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    seen = status()
    process.send_signal(signal.SIGTERM)
    return seen, family


def _check_end(ended: dict[str, Any], seen: dict[str, Any], log: Path) -> None:
    assert seen["broken"]["last_error"]["code"] == "SOURCE_UNAVAILABLE"
    assert {each["pipeline"]: each["state"] for each in ended["pipelines"]} == {
        "first": "stopped",
        "second": "stopped",
        "broken": "stopped",
    }
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "pipeline", "batch", "table"} <= set(line) for line in lines)
    failed = [line for line in lines if line["event"] == "failed"]
    assert {line["pipeline"] for line in failed} == {"broken"}
    assert {line["code"] for line in failed} == {"SOURCE_UNAVAILABLE"}
    assert all(0 < line["retry_in"] <= 3 for line in failed)
    settled = {line["pipeline"] for line in lines if line["event"] == "batch_settled"}
    assert settled == {"first", "second"}
