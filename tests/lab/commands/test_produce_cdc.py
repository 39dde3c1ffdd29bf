"""`produce cdc`, and the folder that it writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from distributary.cli.command_line import main
from distributary.errors import ConfigError
from distributary_lab.simulate.cdc.datastream_files import FileStream, truth_document, write_files
from distributary_lab.simulate.cdc.shapes import CdcPlan
from tests.lab.simulate.cdc_replay import read_all, replay


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def produce(capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    code = main(["produce", "cdc", *more])
    return code, capfd.readouterr().out


def test_the_command_says_what_it_sent(capfd: pytest.CaptureFixture[str]) -> None:
    code, out = produce(capfd, "stream", "--tables", "13", "--events", "300", "--chaos", "--json")
    assert code == 0
    sent = json.loads(out)
    assert sent["to"] == {"kind": "files", "path": "stream"}
    assert sent["changes"] == 300
    reads = read_all(Path("stream"))
    assert len(reads) == sent["events"]
    rows = {json.dumps(claim, separators=(",", ":")): len(t) for claim, t in replay(reads).items()}
    assert sent["rows"] == rows
    assert "truth" not in sent


def test_the_truth_is_written_and_printed(capfd: pytest.CaptureFixture[str]) -> None:
    line = ("--source-type", "postgresql", "--events", "80", "--tables", "5", "--seed", "3")
    code, out = produce(capfd, "a", *line, "--print-truth", "--truth", "new/truth.json")
    assert code == 0
    truth = json.loads(out)
    assert truth == json.loads(Path("new/truth.json").read_text())
    assert [table["table"] for table in truth["tables"]][:2] == ["users", "orders"]
    users = truth["tables"][0]
    assert (users["database"], users["schema"], users["key"]) == ("", "public", ["id"])
    assert users["columns"]["balance"] == "decimal"
    ids = [row["id"] for row in users["rows"]]
    assert len(set(ids)) == len(ids) > 0
    for row in users["rows"]:
        assert isinstance(row["balance"], str) and "." in row["balance"]
        assert row["created_at"].endswith("Z") and len(row["created_at"]) == 27
    everything = truth["tables"][4]
    assert {row["raw"] and bytes.fromhex(row["raw"]) for row in everything["rows"]} - {None}
    code, out = produce(capfd, "b", *line, "--print-truth", "--json")
    assert json.loads(out)["truth"] == truth


def test_people_read_a_summary(capfd: pytest.CaptureFixture[str]) -> None:
    code, out = produce(capfd, "stream", "--events", "20", "--with", "duplicates,noise")
    assert code == 0
    assert "60 distinct" in out


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["gs://bucket/folder"],
        ["x", "--partitions", "2"],
        ["x", "--to", "kafka"],
        ["x", "--format", "debezium"],
        ["--to", "kafka", "--format", "avro"],
        ["--to", "kafka", "--bootstrap-servers", "no port"],
        ["x", "--with", "nonsense"],
        ["x", "--chaos", "--rounds", "2"],
        ["x", "--gzip"],
        ["x", "--source-type", "db2"],
    ],
)
def test_nonsense_is_refused(wrong: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code, out = produce(capfd, *wrong)
    assert (code, out) == (2, "")
    assert not Path("x").exists()


def test_files_appear_round_by_round_and_whole(tmp_path: Path) -> None:
    root, waits, seen = tmp_path / "stream", list[float](), list[int]()
    stream = FileStream(CdcPlan(events=60, rounds=3))

    def count(round: Any) -> None:
        seen.append(len(list(root.rglob("*.avro"))))
        assert not [path for path in root.rglob(".*") if path.is_file()]
        assert all((root / file.path).read_bytes() == file.data for file in round.files)

    sent = write_files(stream, root, interval=7, on_round=count, sleep=waits.append)
    assert waits == [7, 7]
    assert seen == sorted(set(seen))
    assert seen[-1] == sent.files
    assert len(truth_document(stream.model)["tables"]) == 2


def test_a_time_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_files(FileStream(CdcPlan()), tmp_path, interval=-1)
