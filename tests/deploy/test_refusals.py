"""`install` refuses what could be installed and would not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.config.deploy import Cluster
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.refusals import refuse_unfit
from distributary.errors import ConfigError, ErrorCode
from distributary.spark.versions import NEEDED, spark_in
from tests.cli.conftest import Cli
from tests.deploy.conftest import Write

Fit = Callable[..., tuple[str, ...]]

K8S = "deploy: {{kubernetes: {{image: 'r/x:1', spark: {{executors: {n}}}{more}}}}}\n"
DATABRICKS = "deploy: {{databricks: {{{settings}}}}}\n"
CLUSTER = "cluster: {{spark_version: {version}, workers: {workers}}}"
TWO = CLUSTER.format(version="18.x-scala2.13", workers=2)
YARN = "spark: {master: yarn}\n"


@pytest.fixture
def fit(own_folder: Path) -> Fit:
    """What is warned of when a pipeline with such a lake is installed to a target."""

    def check(
        target: str, extra: str, *, lake: str = "s3://bucket/lake", more: str = "", **environ: str
    ) -> tuple[str, ...]:
        path = own_folder / "games.yaml"
        path.write_text(
            "name: games\n"
            "source: {type: kafka, bootstrap_servers: 'h:9092', topics: [t]}\n"
            "payload: {format: json}\n"
            f"tables: {{each: 'silver_{{topic}}'}}\nlake: {{path: '{lake}'{more}}}\n{extra}"
        )
        return refuse_unfit(target, read_for_install(path, environ={}), environ)

    return check


def refused(fit: Fit, target: str, extra: str, **given: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        fit(target, extra, **given)
    error = caught.value
    assert error.code is ErrorCode.DEPLOY_UNFIT
    assert error.exit_code == 2
    assert error.where and error.evidence and error.next_step
    return error


@pytest.mark.parametrize(
    ("target", "extra"),
    [
        ("kubernetes", K8S.format(n=3, more="")),
        ("kubernetes", K8S.format(n=3, more=", claim: games-lake")),
        # one pod without executors: what it writes to its own disk ends with it
        ("kubernetes", K8S.format(n=0, more="")),
        ("databricks", DATABRICKS.format(settings=TWO)),
        ("databricks", DATABRICKS.format(settings="cluster: {id: '0123'}")),
        ("databricks", DATABRICKS.format(settings="serverless: true")),
        ("spark-submit", YARN),
        ("spark-submit", "deploy: {spark_submit: {master: 'spark://h:7077'}}\n"),
        ("systemd", "spark: {master: 'spark://h:7077'}\n"),
        ("airflow", "spark: {remote: 'sc://h:15002'}\n"),
    ],
)
@pytest.mark.parametrize(
    "lake", ["./lake", "/local_disk0/lake", "/mnt/lake", "file:///mnt/lake", "/lake/../mnt"]
)
def test_executors_need_a_lake_that_they_see(fit: Fit, target: str, extra: str, lake: str) -> None:
    assert "lake.path" in refused(fit, target, extra, lake=lake).where
    assert not [each for each in fit(target, extra) if "lake" in each]


@pytest.mark.parametrize(
    ("target", "extra"),
    [
        ("kubernetes", K8S.format(n=3, more="")),
        ("databricks", DATABRICKS.format(settings=TWO)),
        ("spark-submit", YARN),
    ],
)
def test_a_checkpoint_beside_a_bucket_is_looked_at_too(fit: Fit, target: str, extra: str) -> None:
    error = refused(fit, target, extra, more=", checkpoint: /local_disk0/progress")
    assert "lake.checkpoint" in error.where
    assert "/local_disk0/progress" in error.evidence


@pytest.mark.parametrize(
    ("target", "extra", "lake"),
    [
        ("kubernetes", K8S.format(n=3, more=", claim: games-lake"), "/lake/games"),
        ("kubernetes", K8S.format(n=0, more=", claim: games-lake"), "/lake"),
        ("databricks", DATABRICKS.format(settings=TWO), "/Volumes/main/games/lake"),
        ("spark-submit", f"{YARN}deploy: {{shared: [/mnt/lake]}}\n", "/mnt/lake/games"),
        ("systemd", f"{YARN}deploy: {{shared: '/a,/mnt'}}\n", "file:///mnt/lake"),
        # one machine that stays
        ("systemd", "", "./lake"),
        ("airflow", "spark: {master: 'local[2]'}\n", "./lake"),
        ("spark-submit", "", "./lake"),
    ],
)
def test_what_is_shared_or_alone_is_taken(fit: Fit, target: str, extra: str, lake: str) -> None:
    assert fit(target, extra, lake=lake) == ()


def test_a_lake_that_is_known_only_there_is_not_guessed(fit: Fit) -> None:
    assert fit("kubernetes", K8S.format(n=3, more=""), lake="${env:LAKE_PATH}") == ()
    refused(fit, "kubernetes", K8S.format(n=3, more=""), lake="${env:LAKE_PATH:-./lake}")


@pytest.mark.parametrize(
    ("more", "extra", "named"),
    [
        (", database: games", "", "lake.database"),
        ("", "registry: {url: 'http://h', password: '${env:SECRET}'}\n", "SECRET"),
        ("", "spark: {remote: 'sc://h:15002'}\n", "spark.remote"),
    ],
)
def test_serverless_says_what_connect_does_not_do(
    fit: Fit, more: str, extra: str, named: str
) -> None:
    serverless = DATABRICKS.format(settings="serverless: true")
    assert named in refused(fit, "databricks", serverless + extra, more=more).evidence
    assert fit("databricks", serverless) == ()
    secret = "registry: {url: 'http://h', password: '${databricks:scope/key}'}\n"
    assert fit("databricks", serverless + secret) == ()


def test_serverless_needs_the_direct_publisher(own_folder: Path, fit: Fit) -> None:
    fit("databricks", DATABRICKS.format(settings="serverless: true"))
    path = own_folder / "games.yaml"
    path.write_text(path.read_text().replace("tables: {", "tables: {publisher: spark, "))
    with pytest.raises(ConfigError) as caught:
        refuse_unfit("databricks", read_for_install(path, environ={}))
    assert "tables.publisher" in caught.value.evidence
    path.write_text(path.read_text().replace("publisher: spark", "publisher: direct"))
    assert refuse_unfit("databricks", read_for_install(path, environ={})) == ()


@pytest.mark.parametrize("version", ["16.4.x-scala2.13", "15.4.x-scala2.12", "14.x-scala2.12"])
def test_a_runtime_with_another_spark_is_refused(fit: Fit, version: str) -> None:
    settings = CLUSTER.format(version=version, workers=2)
    error = refused(fit, "databricks", DATABRICKS.format(settings=settings))
    assert "spark_version" in error.where
    assert "17 or 18 or 19" in error.next_step and NEEDED in error.what
    older = DATABRICKS.format(settings="serverless: true, environment_version: '3'")
    assert "environment_version" in refused(fit, "databricks", older).where


@pytest.mark.parametrize(
    "version", ["17.3.x-scala2.13", "18.x-scala2.13", "18.2.x-photon-scala2.13", "19.x-scala2.13"]
)
def test_a_runtime_with_a_spark_that_fits_is_taken(fit: Fit, version: str) -> None:
    assert (
        fit("databricks", DATABRICKS.format(settings=CLUSTER.format(version=version, workers=1)))
        == ()
    )


@pytest.mark.parametrize(
    "settings", ["cluster: {id: '0123'}", CLUSTER.format(version="custom:mine", workers=1)]
)
def test_a_runtime_that_nobody_knows_is_warned_of(fit: Fit, settings: str) -> None:
    (warning,) = fit("databricks", DATABRICKS.format(settings=settings))
    assert "not checked here" in warning and NEEDED in warning


def test_the_example_of_a_runtime_is_one_that_fits(fit: Fit) -> None:
    (version,) = Cluster.model_fields["spark_version"].examples or ()
    settings = CLUSTER.format(version=version, workers=1)
    assert fit("databricks", DATABRICKS.format(settings=settings)) == ()


@pytest.mark.parametrize(
    ("jar", "fits"),
    [
        ("spark-core_2.13-4.1.1.jar", True),
        ("spark-core_2.13-4.1.0-amzn-0.jar", True),
        ("spark-core_2.12-3.5.5-amzn-1.jar", False),
        ("spark-core_2.13-4.0.2-amzn-0.jar", True),
        ("spark-core_2.13-5.0.0.jar", False),
    ],
)
def test_another_spark_home_is_refused(fit: Fit, tmp_path: Path, jar: str, fits: bool) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    assert "not checked" in fit("spark-submit", "", SPARK_HOME=str(home))[0]
    (home / "jars" / jar).touch()
    if fits:
        assert fit("spark-submit", "", SPARK_HOME=str(home)) == ()
        assert spark_in(home) in jar
    else:
        assert "SPARK_HOME" in refused(fit, "spark-submit", "", SPARK_HOME=str(home)).where


def test_install_refuses_and_uninstall_does_not(write: Write, cli: Cli) -> None:
    file = write(K8S.format(n=3, more=""), lake="./lake")
    for dry in ((), ("--dry-run",)):
        result = cli("install", file, "--target", "kubernetes", *dry, "--json")
        assert (result.code, result.json["error"]["code"]) == (2, "DEPLOY_UNFIT")
    assert not Path("games-kubernetes").exists()
    assert cli("uninstall", file, "--target", "kubernetes", "--dry-run").code == 0


def test_what_an_installable_knows(installable: Callable[..., Installable]) -> None:
    known = installable()
    assert (known.lake, known.checkpoint) == ("s3://bucket/lake", "s3://bucket/lake/_checkpoints")
    assert known.needs_jvm == ("lake.database",)
