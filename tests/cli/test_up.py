"""`up` as a command: what it refuses, and what it says in the end."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from distributary.cli.command.live import UpView
from distributary.errors import DistributaryError, ErrorCode
from distributary.supervise.member import MemberState, MemberStatus
from tests.cli.conftest import Cli

TEXT = """
name: {name}
source: {{type: delta, path: nowhere/wrapper, value: wrapper}}
payload: {{format: json}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: lake}}
restart: {{max: 0}}
"""
CHILD = """
import json, os, sys
pipe = os.fdopen(int(os.environ["DISTRIBUTARY_EVENTS_FD"]), "w")
pipe.write(json.dumps({"event": "BatchSettled", "pipeline": "x", "batch": 4, "rows": 8,
    "counts": {"read": 8, "written": 8}, "tables": 1, "seconds": 2.0}) + "\\n")
pipe.write(json.dumps({"event": "Stopped", "pipeline": "x", "batches": 1,
    "reason": "done"}) + "\\n")
pipe.close()
name = os.path.basename(sys.argv[-1])
if name.startswith("bad"):
    print("no \\x1b[31m hunter22", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"stopped": "done", "parked": 0}))
"""


@pytest.fixture
def pipelines(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of pipelines whose processes are small scripts."""
    monkeypatch.setenv("SECRET", "hunter22")
    script = own_folder / "child.py"
    script.write_text(CHILD)

    def command(*options: str) -> Callable[[Path], Sequence[str]]:
        return lambda file: (sys.executable, "-I", "-S", str(script), *options, str(file))

    monkeypatch.setattr("distributary.supervise.supervisor.run_command", command)
    for name in ("good", "bad"):
        text = TEXT.format(name=name) + "registry: {url: 'http://h', token: '${env:SECRET}'}\n"
        (own_folder / f"{name}.yaml").write_text(text)
    return ["good.yaml", "bad.yaml"]


def test_lines_in_a_pipe(cli: Cli, pipelines: list[str]) -> None:
    result = cli("up", *pipelines)
    assert result.code == 1
    lines = result.out.splitlines()
    assert "good  batch 4  8 rows  4 rows/s  lag -  1 table  0 dead letters  2.0 s" in lines
    assert "good  done after 1 batch" in lines
    assert any(line.startswith("bad  failed: PROCESS_DIED") for line in lines)
    assert "\x1b" not in result.out + result.err
    assert "hunter22" not in result.out + result.err and "***" in result.err


def test_one_document_at_the_end(cli: Cli, pipelines: list[str]) -> None:
    result = cli("up", *pipelines, "--json")
    assert result.code == 1
    assert result.json["version"] == 1 and result.json["signal"] is None
    found = {each["pipeline"]: each for each in result.json["pipelines"]}
    assert (found["good"]["state"], found["good"]["last_batch"]["batch"]) == ("done", 4)
    assert found["bad"]["last_error"]["code"] == "PROCESS_DIED"
    assert "hunter22" not in result.out


def test_a_log_of_json_lines(cli: Cli, pipelines: list[str]) -> None:
    result = cli("up", "good.yaml", "--log-format", "json")
    assert result.code == 0
    lines = [json.loads(line) for line in result.err.splitlines()]
    assert [line["event"] for line in lines] == ["process_started", "batch_settled", "stopped"]
    assert lines[1]["batch"] == 4
    # what happened is in the log, the outcome on standard output
    assert result.out.splitlines()[0].startswith("PIPELINE")


def test_errors_only(cli: Cli, pipelines: list[str]) -> None:
    result = cli("up", "good.yaml", "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_a_file_that_is_wrong_does_not_stop_the_others(cli: Cli, pipelines: list[str]) -> None:
    result = cli("up", "good.yaml", "good.yaml", "none.yaml", "--json")
    assert result.code == 1
    states = [each["state"] for each in result.json["pipelines"]]
    assert states == ["done", "failed", "failed"]
    assert result.json["pipelines"][2]["last_error"]["code"] == "CONFIG_UNREADABLE"


def test_nothing_but_wrong_files_is_a_matter_of_configuration(cli: Cli) -> None:
    assert cli("up", "none.yaml").code == 2
    assert cli("up").code == 2


@pytest.mark.parametrize(
    "flags",
    [
        ("--grace", "soon"),
        ("--every", "0s"),
        ("--every", "x"),
        ("--listen", "x"),
        ("--listen", "0.0.0.0:0"),
        ("--log-format", "xml"),
    ],
)
def test_wrong_flags(cli: Cli, pipelines: list[str], flags: tuple[str, str]) -> None:
    result = cli("up", "good.yaml", *flags)
    assert result.code == 2
    assert "CONFIG_INVALID" in result.err


def test_the_address_is_said(cli: Cli, pipelines: list[str]) -> None:
    assert "listening at http://127.0.0.1:" in cli("up", "good.yaml", "--listen", "0").err


def test_run_keeps_a_log_too(cli: Cli) -> None:
    result = cli("run", "none.yaml", "--log-format", "json")
    assert result.code == 2
    (line,) = (json.loads(line) for line in result.err.splitlines())
    assert (line["level"], line["event"], line["code"]) == ("ERROR", "error", "CONFIG_UNREADABLE")


def test_the_view_has_the_worst_first_and_never_floods_the_screen() -> None:
    error = DistributaryError("\x1b[31m no", code=ErrorCode.SOURCE_UNAVAILABLE)
    retry = datetime.now(UTC) + timedelta(minutes=30)
    many = [MemberStatus(name=f"p{n}", file="f", state=MemberState.RUNNING) for n in range(1000)]
    many.append(
        MemberStatus(name="worst", file="f", state=MemberState.BACKOFF, error=error, retry_at=retry)
    )
    view = UpView(lambda: many)
    for n in range(100):
        view.say(f"news {n} \x1b[31m")
    view.stop()
    stream = io.StringIO()
    Console(file=stream, width=150, markup=False).print(view)
    lines = stream.getvalue().splitlines()
    assert "1,001 pipelines: 1,000 running, 1 backoff; stopping" in lines[0]
    assert lines[2].split()[:3] == ["worst", "backoff", "SOURCE_UNAVAILABLE"]
    assert "min" in lines[2]
    assert len(lines) < 60 and "\x1b" not in stream.getvalue()


def test_upkeep_runs_beside_the_pipelines_that_ask_for_it(
    cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = own_folder / "waits.py"
    waits.write_text(
        "import os, sys, time\n"
        "for _ in range(600):\n"
        "    if os.path.exists('maintained'): break\n"
        "    time.sleep(0.1)\n"
        'print(\'{"stopped": "done", "parked": 0}\')\n'
    )
    keeps = own_folder / "keeps.py"
    keeps.write_text("import sys\nopen('maintained', 'w').write(' '.join(sys.argv[1:]))\n")
    monkeypatch.setattr(
        "distributary.supervise.supervisor.run_command",
        lambda *_: lambda file: (sys.executable, "-I", "-S", str(waits), str(file)),
    )
    monkeypatch.setattr(
        "distributary.supervise.supervisor.own_command",
        lambda *words: (sys.executable, "-I", "-S", str(keeps), *words),
    )
    (own_folder / "kept.yaml").write_text(TEXT.format(name="kept") + "maintain: {every: 1s}\n")
    (own_folder / "left.yaml").write_text(TEXT.format(name="left"))
    result = cli("up", "kept.yaml", "left.yaml", "--json")
    assert result.code == 0, result.err
    words = (own_folder / "maintained").read_text().split()
    assert words[:2] == ["maintain", "--json"]
    assert words[-1].endswith("kept.yaml")
