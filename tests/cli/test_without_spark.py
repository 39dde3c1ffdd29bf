import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import Claim
from tests.cli.conftest import Cli
from tests.lakes.written import make_lake
from tests.web.lakes import WebLake

FILE = """
name: games
source: {{type: delta, path: {root}/wrapper, value: wrapper}}
registry: {{path: {root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {root}}}
"""


@pytest.fixture
def file(own_folder: Path) -> Path:
    """A pipeline that has never run, and a lake that it has."""
    root = own_folder / "lake"
    path = own_folder / "games.yaml"
    path.write_text(FILE.format(root=root))
    return path


def produce(cli: Cli, *more: object) -> dict[str, object]:
    to = ("--to", "delta", "lake/wrapper", "--registry", "lake/schemas")
    result = cli("produce", "games", *to, "--games", 3, "--versions", 2, "--json", *more)
    assert result.code == 0, result.err
    return dict(result.json)


def test_produce_says_what_it_sent(file: Path, cli: Cli) -> None:
    sent = produce(cli, "--records", 4, "--bad", 2, "--bad-kinds", "null_value,no_type")
    assert (sent["messages"], sent["good"], sent["bad"]) == (26, 24, 2)
    assert sent["bad_by_code"] == {"NULL_VALUE": 1, "MISSING_TYPE": 1}
    assert DeltaTable("lake/wrapper").to_pyarrow_table().num_rows == 26
    to = ("--to", "delta", "people", "--registry", "lake/schemas")
    assert "sent 20 messages" in cli("produce", "people", *to).out
    to = ("--to", "delta", "orders", "--registry", "lake/schemas")
    sent = cli("produce", "orders", *to, "--versions", 2, "--empty", 1, "--json").json
    assert (sent["messages"], sent["good"]) == (21, 21)
    assert sent["rows"] > 21


@pytest.mark.parametrize(
    "wrong",
    [
        ["--to", "kafka", "x", "--registry", "s"],
        ["--to", "kafka", "--registry", "s"],
        ["--to", "kafka", "--topic", "a b"],
        ["--to", "kafka", "--registry-url", "ftp://x"],
        ["--to", "files", "x"],
        ["--to", "delta", "x", "--registry", "s", "--partitions", "2"],
        ["--to", "delta", "x", "--registry", "s", "--bad", "1", "--bad-kinds", "nul_value"],
        ["--to", "delta", "x", "--registry", "s", "--records", "0"],
        ["--to", "delta", "x"],
    ],
)
def test_produce_refuses_nonsense(cli: Cli, wrong: list[str], own_folder: Path) -> None:
    assert cli("produce", "games", *wrong).code == 2
    assert not (own_folder / "x").exists()


def test_plan_says_what_a_run_would_do(file: Path, cli: Cli) -> None:
    produce(cli, "--bad", 1, "--bad-kinds", "unknown_schema_id")
    result = cli("plan", file)
    assert result.code == 0
    assert result.out.count("+ table silver_") == 3
    document = cli("plan", file, "--json").json
    assert document["changes"] is True
    assert document["records"] == 61
    assert {t["name"] for t in document["tables"] if t["new"]} >= {
        name.split()[2] for name in result.out.splitlines() if name.startswith("+ table silver_")
    }
    assert cli("plan", file, "--check").code == 1


def test_doctor_has_a_row_per_check(file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(cli)
    document = cli("doctor", file, "--json").json
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert {"python", "java", "connectors", "memory", "disk", "lake", "lake clock"} <= set(states)
    proven = ("lake", "lake puts", "checkpoint", "checkpoint puts", "claim", "exchange")
    assert {states[name] for name in proven} == {"pass"}
    tried = {check["name"]: check["tried"] for check in document["checks"]}
    assert "created a file" in tried["checkpoint puts"]
    # a lake that was not there is not there now
    assert not list(Path(file).parent.rglob(".distributary-doctor*"))
    assert not (Path(file).parent / "lake" / "_checkpoints").exists()
    assert (states["registry"], states["source"]) == ("pass", "pass")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = cli("doctor", file)
    assert result.code == 1
    assert "fail" in result.out
    assert "java: " in result.out


@pytest.mark.parametrize(
    ("spark", "state"),
    [
        ("{master: 'local[2]'}", None),
        ("{master: 'spark://127.0.0.1:1'}", "warn"),
        ("{master: yarn}", "warn"),
        ("{master: 'spark://127.0.0.1:1', conf: {spark.authenticate.secret: CANARY}}", "pass"),
    ],
)
def test_doctor_warns_of_a_cluster_that_believes_everybody(
    file: Path, cli: Cli, spark: str, state: str | None
) -> None:
    path = Path(file)
    path.write_text(f"{path.read_text()}\nspark: {spark}\n")
    result = cli("doctor", file, "--json")
    states = {check["name"]: check["state"] for check in result.json["checks"]}
    assert states.get("cluster") == state
    # nobody answers there, which is found out without starting Spark
    assert states["exchange"] == ("pass" if state is None else "fail")
    assert "CANARY" not in result.out


def test_doctor_finds_a_source_that_is_not_there(file: Path, cli: Cli) -> None:
    result = cli("doctor", file, "--json")
    assert result.code == 1
    checks = {check["name"]: check for check in result.json["checks"]}
    assert checks["source"]["state"] == "fail"
    assert "distributary produce" in checks["source"]["fix"]


def test_doctor_looks_at_a_folder_of_files(own_folder: Path, cli: Cli) -> None:
    file, files = own_folder / "changes.yaml", own_folder / "files"
    file.write_text(
        f"name: changes\nsource: {{type: files, path: {files}, format: json}}\n"
        "cdc: {format: datastream}\ntables: {each: '{table}'}\n"
        f"lake: {{path: {own_folder}/lake}}\n"
    )

    def found() -> tuple[str, str]:
        checks = {each["name"]: each for each in cli("doctor", file, "--json").json["checks"]}
        return checks["source"]["state"], checks["source"]["found"]

    assert found()[0] == "fail"
    files.mkdir()
    assert found() == ("warn", f"{files} has no file yet")
    minute = files / "shop_orders" / "2024" / "05" / "06" / "07" / "08"
    minute.mkdir(parents=True)
    (files / "other.avro").write_bytes(b"Obj")
    assert found() == ("warn", f"{files} has 1 file, and none of them is read")
    (minute / "a\x1b[31m.jsonl").write_bytes(b"{}\n")
    state, text = found()
    assert (state, "1 file, 3 Bytes" in text, "\x1b" in text) == ("pass", True, False)
    assert not (own_folder / "lake").exists()


def test_doctor_warns_of_marks_that_expire(own_folder: Path, cli: Cli) -> None:
    lake = make_lake(own_folder / "lake")
    table = DeltaTable(str(lake / "silver_0"))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    checks = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert checks["marks"]["state"] == "warn"
    assert "silver_0" in checks["marks"]["found"]


def run_before(file: Path) -> Path:
    """What a run leaves behind: a checkpoint and the ledger's word."""
    lake = make_lake(file.parent / "lake", types=("chess",), file=file)
    checkpoint = lake / "_checkpoints" / "games"
    checkpoint.mkdir(parents=True)
    (checkpoint / "life.json").write_text(json.dumps({"life": "life1", "pipeline": "games"}))
    return checkpoint


def test_reset_refuses_without_a_terminal_and_shows_the_list(file: Path, cli: Cli) -> None:
    checkpoint = run_before(file)
    refused = cli("reset", file)
    assert refused.code == 2
    assert "CONFIRMATION_NEEDED" in refused.err
    assert str(checkpoint) in refused.err
    assert checkpoint.exists()
    tried = cli("reset", file, "--dry-run", "--json").json
    assert [each["path"] for each in tried["removals"]] == [str(checkpoint)]
    assert checkpoint.exists()
    assert cli("reset", file, "--yes", "--json").json["removed"] is True
    # what is left is the beginning of another life
    assert '"life1"' not in (checkpoint / "life.json").read_text()
    assert cli("reset", file, "--yes").out == "there is nothing to remove\n"


def test_clean_takes_what_the_pipeline_made_and_nothing_else(file: Path, cli: Cli) -> None:
    run_before(file)
    produce(cli)
    lake = file.parent / "lake"
    (lake / "silver_mine").mkdir()
    refused = cli("clean", file)
    assert refused.code == 2
    assert "silver_0" in refused.err and "silver_mine" not in refused.err
    listed = cli("clean", file, "--dry-run", "--json").json["removals"]
    assert {each["table"]: each["rows"] for each in listed if each["kind"] == "table"} == {
        "silver_0": 10
    }
    # pipelines share the ledger: no one may think that all of it goes
    assert re.search(r"^ledger +\(its entries only\) ", refused.err, re.MULTILINE)
    assert cli("clean", file, "--yes").code == 0
    assert not (lake / "silver_0").exists()
    assert (lake / "silver_mine").exists() and (lake / "wrapper").exists()
    assert (lake / "schemas").exists() and file.exists()
    assert cli("clean", file, "--yes").out == "there is nothing to remove\n"


def test_resume_of_a_table_for_which_nothing_waits(file: Path, cli: Cli) -> None:
    run_before(file)
    result = cli("resume", "silver_0")
    assert (result.code, result.out) == (0, "nothing waits for silver_0\n")
    assert cli("resume", "silver_77").code == 2


def test_replay_of_nothing_starts_nothing(file: Path, cli: Cli) -> None:
    run_before(file)
    result = cli("dlq", "replay", "--reason", "BAD_MAGIC")
    assert (result.code, result.out) == (0, "0 to replay\n")
    refused = cli("dlq", "replay")
    assert refused.code == 2
    assert refused.err.startswith("CONFIRMATION_NEEDED")


def test_a_pipeline_file_that_moved_is_named(file: Path, cli: Cli) -> None:
    run_before(file)
    file.rename("moved.yaml")
    lost = cli("dlq", "replay", "--yes")
    assert lost.code == 2
    assert lost.err.startswith("NOT_FOUND")
    assert cli("dlq", "replay", "--reason", "BAD_MAGIC", "--file", "moved.yaml").code == 0


def test_a_file_with_a_long_path_is_found_again(file: Path, cli: Cli) -> None:
    folder = file.parent.joinpath(*(["a folder with a long name"] * 8))
    folder.mkdir(parents=True)
    run_before(file)
    long = file.rename(folder / "games.yaml")
    line = ("dlq", "replay", "--reason", "BAD_MAGIC", "--file", long)
    assert cli(*line).out == "0 to replay\n"


def imported(
    *arguments: object, of: Collection[str] = ("pyspark", "pandas")
) -> tuple[str, set[str]]:
    """What a command says in a process of its own, and which of the slow packages it imported."""
    code = (
        "import atexit, sys; from distributary.cli.command_line import program; "
        f"slow = lambda: sys.modules.keys() & {set(of)!r}; "
        "atexit.register(lambda: print('imported', *slow(), file=sys.stderr)); program()"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr, set(done.stderr.splitlines()[-1].split()[1:])


def test_what_cannot_run_is_said_before_spark_is_imported(file: Path) -> None:
    said, slow = imported("run", "missing.yaml")
    assert "CONFIG_UNREADABLE" in said and slow == set()
    claim = Claim.take(Pipeline.load(file).checkpoint, lease=60)
    try:
        said, slow = imported("run", file)
    finally:
        claim.release()
    assert "CHECKPOINT_OWNED" in said and slow == set()


def test_nothing_to_replay_is_said_before_spark_is_imported(own_folder: Path) -> None:
    make_lake(own_folder / "lake")
    line = ("dlq", "replay", "--reason", "BAD_MAGIC", "--lake", own_folder / "lake")
    assert imported(*line)[1] == set()


def test_status_imports_neither_spark_nor_pandas(own_folder: Path) -> None:
    make_lake(own_folder / "lake")
    assert imported("status", "--lake", own_folder / "lake")[1] == set()


def test_looking_imports_nothing_that_only_writing_needs(own_folder: Path) -> None:
    lake = WebLake(own_folder / "lake")
    lake.settle(0, {"silver_chess": "chess"})
    # what compiles schemas, tries again, computes with SQL, and what a run tells its listeners
    slow = {"google.protobuf", "grpc_tools", "jsonschema_rs", "tenacity", "asyncio", "duckdb"}
    slow |= {
        "distributary.observe.events",
        "distributary.config.pipeline_config",
        "pyspark",
        "pandas",
    }
    # what checks a pipeline file, and a process that runs; masked arrays; another verb's options
    slow |= {"pydantic", "psutil", "numpy.ma", "distributary.cli.upkeep.source_comparison"}
    for line in (("status",), ("status", "--json"), ("trace", "wrapper/0/3")):
        said, found = imported(*line, "--lake", lake.path, of=slow)
        assert found == set(), (line, said)


def test_looking_by_a_file_imports_what_reads_the_file_and_no_more(file: Path) -> None:
    run_before(file)
    # what could heal its dead letters is imported besides, if there are any: not named here
    slow = {"tenacity", "asyncio", "duckdb", "psutil", "numpy.ma"}
    slow |= {
        "distributary.observe.events",
        "pyspark",
        "pandas",
        "distributary.cli.upkeep.source_comparison",
    }
    said, found = imported("status", file, of={*slow, "pydantic"})
    assert found == {"pydantic"}, said


def test_values_that_need_no_validation_are_those_that_were_typed(
    own_folder: Path, cli: Cli
) -> None:
    """A path, a text, a count and a switch are taken as they are; a number is still refused."""
    make_lake(own_folder / "lake")
    assert cli("status", "--lake", own_folder / "lake", "-v").code == 0
    assert cli("status", own_folder / "none.yaml").err.count("CONFIG_UNREADABLE") == 2
    refused = cli("head", "silver_0", "--rows", "many", "--lake", own_folder / "lake")
    assert (refused.code, "CONFIG_INVALID" in refused.err) == (2, True)
    assert cli("head").code == 2
