from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.cli.command_line import main
from distributary.config.deploy import SparkSubmit
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.refusals import refuse_unfit
from distributary.deploy.scripts import spark_submit_target, submit_script
from distributary.errors import DistributaryError
from distributary.spark import packages
from distributary.spark.versions import NEEDED, VERSIONS
from distributary_lab.simulate.game_records import GamesPlan
from tests.docs.pages import DOCS, blocks
from tests.lakes.games import Games
from tests.spark.test_cluster import master

__all__ = ["master"]

Make = Callable[..., Installable]


def run_script(
    script: str, folder: Path, spark: str, first_lines: str = f"#!{sys.executable}"
) -> subprocess.CompletedProcess[str]:
    """The script with a Spark that only says how it was called."""
    for name in ("bin", "jars"):
        (folder / name).mkdir()
    (folder / "jars" / f"spark-core_2.13-{spark}.jar").touch()
    path = folder / "bin" / "submit.sh"
    path.write_text(script)
    said = folder / "bin" / "spark-submit"
    said.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said.chmod(0o755)
    command = folder / "path" / "distributary"
    command.parent.mkdir()
    command.write_text(f"{first_lines}\n")
    command.chmod(0o755)
    found = {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["/bin/sh", path, "--conf", "spark.more=1"],
        env={**os.environ, **found, "SPARK_HOME": str(folder), "DISTRIBUTARY_JARS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def arguments(script: str, folder: Path) -> list[str]:
    """What the script would give to `spark-submit`."""
    done = run_script(script, folder, "4.1.1")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", ["3.5.5-amzn-1", "4.4.0", "5.0.0", "14.1.0"])
def test_another_spark_is_not_even_started(
    installable: Make, own_folder: Path, version: str
) -> None:
    (own_folder / "a.jar").touch()
    done = run_script(submit_script(installable(), SparkSubmit()), own_folder, version)
    assert (done.returncode, done.stdout) == (2, "")
    assert version[:3] in done.stderr and NEEDED in done.stderr


@pytest.mark.parametrize("minor", VERSIONS)
def test_each_spark_that_fits_is_started(installable: Make, own_folder: Path, minor: str) -> None:
    (own_folder / "a.jar").touch()
    script = submit_script(installable(), SparkSubmit())
    assert run_script(script, own_folder, f"{minor}.2-amzn-0").returncode == 0


def test_the_script_gives_each_word_as_it_is(installable: Make, own_folder: Path) -> None:
    (own_folder / "a.jar").touch()
    settings = SparkSubmit(master="spark://h:7077", conf={"spark.a": "b c'$(touch owned)"})
    name = "a b'$x.yaml"
    said = arguments(submit_script(installable(file=name), settings), own_folder)
    assert said[:2] == ["--master", "spark://h:7077"]
    assert ["--jars", str(own_folder / "a.jar")] == said[4:6]
    assert f"{own_folder}/bin/environment.tar.gz#environment" in said
    assert "spark.pyspark.python=./environment/bin/python" in said
    assert f"spark.pyspark.driver.python={sys.executable}" in said
    assert "spark.a=b c'$(touch owned)" in said
    assert said[-6:-4] == ["--conf", "spark.more=1"]
    launcher = f"{own_folder}/bin/launch.py"
    file = f"{own_folder}/bin/pipeline.yaml"
    assert said[-4:] == [launcher, "run", file, "--available-now"]
    assert not (own_folder / "owned").exists()


def test_the_script_holds_no_path_of_the_machine_that_wrote_it(
    installable: Make, own_folder: Path
) -> None:
    script = submit_script(installable(), SparkSubmit())
    assert str(own_folder) not in script and sys.executable not in script
    (own_folder / "a.jar").touch()
    long = f'#!/bin/sh\n\'\'\'exec\' "{sys.executable}" "$0" "$@"'
    done = run_script(script, own_folder, "4.1.1", long)
    assert f"spark.pyspark.driver.python={sys.executable}" in done.stdout.splitlines()


def test_what_lies_beside_the_script_is_all_that_it_needs(
    installable: Make, own_folder: Path
) -> None:
    target = spark_submit_target(installable("# canary\n"), out=own_folder / "out")
    target.apply(target.plan())
    names = {path.name for path in (own_folder / "out").iterdir()}
    assert names == {"submit.sh", "launch.py", "pipeline.yaml", "log4j2.properties"}
    assert "canary" not in (own_folder / "out" / "pipeline.yaml").read_text()


def test_the_page_says_what_the_script_does(own_folder: Path) -> None:
    found = blocks(DOCS / "deploy" / "spark-submit.md")
    file = next(block for block in found if block.language == "yaml")
    (line,) = [b for b in found if b.text.startswith("spark-submit ")]
    path = own_folder / "games.yaml"
    path.write_text(file.text)
    pipeline = read_for_install(path, environ={})
    assert refuse_unfit("spark-submit", pipeline, {}) == ()
    (own_folder / "a.jar").touch()
    settings = pipeline.deploy.spark_submit
    assert settings is not None
    script = submit_script(pipeline, settings)
    said = arguments(script, own_folder)
    said = [word.replace(f"{own_folder}/bin/", "games-spark-submit/") for word in said]
    said = [word.replace(f"{own_folder}/", "").replace("a.jar", "CONNECTORS") for word in said]
    said = [word.replace(sys.executable, "/path/of/python") for word in said]
    at = said.index("spark.more=1")
    assert [*said[: at - 1], *said[at + 1 :]] == shlex.split(" ".join(line.lines()))[1:]


def test_workers_that_have_the_packages_get_no_archive(installable: Make, own_folder: Path) -> None:
    script = submit_script(installable(), SparkSubmit(environment="workers"))
    assert "--archives" not in script and "spark.pyspark.python" not in script
    assert "--master 'local[*]'" in script


@pytest.mark.cluster
@pytest.mark.slow
def test_executors_without_any_package_run_a_pipeline(
    own_folder: Path, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nothing of it travels far
    monkeypatch.setattr(packages, "COMPRESSION", 0)
    games = Games(
        own_folder, GamesPlan(games=4, versions=2, records=20, bad=6), records_per_file=20
    )
    games.send_all()
    games.write_file(
        extra=f"""
spark: {{master: "{master}"}}
deploy:
  # the executors are processes of this machine
  shared: ["{games.root}"]
  spark_submit:
    conf:
      spark.driver.memory: 1g
      spark.driver.host: 127.0.0.1
      spark.driver.bindAddress: 127.0.0.1
      spark.executor.memory: 512m
      spark.executor.cores: "1"
      spark.cores.max: "2"
      spark.scheduler.minRegisteredResourcesRatio: "1.0"
"""
    )
    file, out = str(games.root / "games.yaml"), str(own_folder / "submit")
    assert main(["install", file, "--target", "spark-submit", "--out", out]) == 0
    assert main(["package", f"{out}/environment.tar.gz", "--quiet"]) == 0
    # whoever has no packages of ours: the system's own Python on the workers
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    done = subprocess.run(
        [f"{out}/submit.sh"],
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1", "DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "read 166" in done.stdout, shlex.quote(done.stdout)
    games.assert_each_record_once()
    assert "INFO" not in done.stderr


@pytest.mark.parametrize(
    "target", ["spark_submit: {conf", "kubernetes: {image: r/x:1, spark: {conf"]
)
@pytest.mark.parametrize("value", ["-Xss4m -Dmy.password=canary", "https://u:canary@host"])
def test_a_secret_inside_a_value_is_refused(installable: Make, target: str, value: str) -> None:
    ends = "}" * target.count("{")
    with pytest.raises(DistributaryError) as caught:
        installable(f"deploy: {{{target}: {{spark.driver.extraJavaOptions: '{value}'}}{ends}}}\n")
    assert caught.value.exit_code == 2
    assert "canary" not in str(caught.value)
