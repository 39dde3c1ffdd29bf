from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from distributary.config.load import load_text
from distributary.errors import ConfigError, ErrorCode
from distributary.spark import settings as module
from distributary.spark.settings import (
    REQUIRED,
    SparkSettings,
    default_driver_memory,
    launch_conf,
    secret_options,
    spark_conf,
)

JARS = [Path("/cache/one.jar"), Path("/cache/two.jar")]


def conf_of(settings: SparkSettings, **arguments: object) -> dict[str, str]:
    return spark_conf(settings, app_name="test", jars=JARS, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2]", True),
        ("local[2, 3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://127.0.0.1:7077", False),
        ("yarn", False),
        ("k8s://https://localhost", False),
    ],
)
def test_what_is_local(master: str, local: bool) -> None:
    assert SparkSettings(master=master).is_local is local


def test_a_session_without_delta_names_none_of_its_classes() -> None:
    users = {"spark.sql.extensions": "own.Extension"}
    for conf, extensions in (({}, None), (users, "own.Extension")):
        without = conf_of(SparkSettings(conf=conf), delta=False)
        assert "delta" not in " ".join(v for n, v in without.items() if n.startswith("spark.sql"))
        assert without.get("spark.sql.extensions") == extensions
    usual = conf_of(SparkSettings(conf=users))
    assert usual["spark.sql.extensions"].endswith("DeltaSparkSessionExtension,own.Extension")
    assert usual["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")


def test_user_wins_over_defaults() -> None:
    conf = conf_of(SparkSettings(conf={"spark.ui.enabled": "true"}))
    assert conf["spark.ui.enabled"] == "true"
    assert conf_of(SparkSettings())["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h"])
def test_sparks_own_page_is_there_on_a_cluster_and_ends_nothing(master: str) -> None:
    conf = conf_of(SparkSettings(master=master))
    assert (conf["spark.ui.enabled"], conf["spark.ui.killEnabled"]) == ("true", "false")
    off = conf_of(SparkSettings(master=master, conf={"spark.ui.enabled": "false"}))
    assert off["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2, 3]"])
def test_a_local_spark_asks_for_a_secret_and_listens_to_this_machine_only(master: str) -> None:
    conf = conf_of(SparkSettings(master=master))
    # Spark generates the secret itself, again each time: it stands in no setting
    assert conf["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in conf
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local", {"spark.authenticate": "false"}, False),
        # the daemons of such a cluster must know the secret: none can be made up
        ("spark://h:7077", {}, False),
        ("spark://h:7077", {"spark.authenticate.secret": "CANARY"}, True),
        # a variable that nobody has set
        ("spark://h:7077", {"spark.authenticate.secret": ""}, False),
        ("spark://h:7077", {"spark.authenticate.secret": "x", "spark.authenticate": "no"}, False),
        ("yarn", {}, False),
        ("k8s://https://h", {"spark.authenticate": "true"}, True),
    ],
)
def test_a_cluster_asks_for_the_secret_that_it_was_given(
    master: str, given: dict[str, str], expected: bool
) -> None:
    settings = SparkSettings(master=master, conf=given)
    conf = conf_of(settings)
    assert (conf.get("spark.authenticate") == "true") is expected
    assert settings.authenticates is expected
    assert "CANARY" not in str(launch_conf(conf))
    assert re.search(conf["spark.redaction.regex"], "spark.authenticate.secret")


@pytest.mark.parametrize("name", REQUIRED)
def test_nobody_wins_over_what_must_hold(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        conf_of(SparkSettings(conf={name: "Mars/Olympus"}))
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert conf_of(SparkSettings(conf={name: REQUIRED[name]}))[name] == REQUIRED[name]


def test_jars_are_on_the_class_path_or_sent() -> None:
    mine = SparkSettings(conf={"spark.driver.extraClassPath": "/mine.jar"})
    local = conf_of(mine, jars_first=True)
    expected = os.pathsep.join(["/cache/one.jar", "/cache/two.jar", "/mine.jar"])
    assert local["spark.driver.extraClassPath"] == expected
    assert "spark.jars" not in local
    remote = conf_of(SparkSettings(master="yarn", conf={"spark.jars": "/mine.jar"}))
    assert remote["spark.jars"] == "/cache/one.jar,/cache/two.jar,/mine.jar"
    assert "spark.driver.extraClassPath" not in remote


def test_lists_and_patterns_of_the_user_are_kept_beside_ours() -> None:
    conf = conf_of(
        SparkSettings(
            conf={
                "spark.sql.extensions": "org.example.Mine",
                "spark.redaction.regex": "mine",
                "spark.driver.extraJavaOptions": "-Dmine=1",
            }
        ),
        java_options=["-Dours=a b"],
    )
    assert conf["spark.sql.extensions"].split(",")[1:] == ["org.example.Mine"]
    assert conf["spark.redaction.regex"].endswith("|mine")
    assert conf["spark.driver.extraJavaOptions"] == '"-Dours=a b" -Dmine=1'


@pytest.mark.parametrize(
    ("master", "few"), [("local", True), ("local[2]", True), ("local[3]", False), ("yarn", False)]
)
def test_two_cores_are_few(master: str, few: bool) -> None:
    assert SparkSettings(master=master).has_few_cores is few


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ("-Da=b -XX:+UseG1GC", True),
        ("-XX:+UseZGC -Da=b", True),
        ("-XX:GCTimeRatio=4", False),
        ("", False),
    ],
)
def test_a_collector_that_the_user_chose_is_seen(options: str, chosen: bool) -> None:
    settings = SparkSettings(conf={"spark.driver.extraJavaOptions": options})
    assert settings.chooses_collector is chosen
    assert not SparkSettings().chooses_collector


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.access.key",
        "spark.ssl.keyPassword",
        "spark.driver.myToken",
        "spark.kubernetes.authenticate.oauthToken",
        "spark.driver.my.pwd",
        "spark.kubernetes.driverEnv.SIGNATURE",
        "spark.anything.else",
    ],
)
def test_command_line_holds_no_secret_and_nothing_needless(name: str) -> None:
    conf = conf_of(SparkSettings(conf={name: "CANARY"}))
    assert conf[name] == "CANARY"
    assert "CANARY" not in str(launch_conf(conf))


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.x.connection.string",
        "spark.driver.my.pwd",
        "spark.given.by.a.variable",
    ],
)
def test_event_log_masks_what_is_secret(name: str) -> None:
    conf = conf_of(SparkSettings(sealed=frozenset({"spark.given.by.a.variable"})))
    for setting in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
        assert re.search(conf[setting], name)
        assert not re.search(conf[setting], "spark.sql.shuffle.partitions")
        assert not re.search(conf[setting], "spark.also.given.by.a.variable.not")


@pytest.mark.parametrize("value", ["https://me:CANARY@example.com/x", "Server=x;Pwd=CANARY"])
def test_secret_inside_an_innocent_setting_is_hidden_too(value: str) -> None:
    conf = conf_of(SparkSettings(conf={"spark.driver.place": value}))
    assert "CANARY" not in str(launch_conf(conf))
    for setting in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
        assert re.search(conf[setting], "spark.driver.place")


def test_secret_options_of_the_jvm_go_by_a_file() -> None:
    options = '-Xss4m "-Djavax.net.ssl.keyStorePassword=CANARY CANARY" -Dplain=1'
    conf = conf_of(SparkSettings(conf={"spark.driver.extraJavaOptions": options}))
    assert secret_options(conf) == ["-Djavax.net.ssl.keyStorePassword=CANARY CANARY"]
    launched = launch_conf(conf, options_file=Path("/private/options"))
    assert shlex.split(launched["spark.driver.extraJavaOptions"]) == [
        *("-Xss4m", "-Dplain=1", "@/private/options")
    ]


def test_a_variable_keeps_a_setting_off_the_command_line() -> None:
    names = ("spark.driver.extraJavaOptions", "spark.driver.note", "spark.jars")
    given = SparkSettings(conf=dict.fromkeys(names, "-Dx=CANARY"), sealed=frozenset(names))
    conf = conf_of(given, java_options=["-Dours=1"])
    launched = launch_conf(conf, sealed=given.sealed, options_file=Path("/private/options"))
    assert secret_options(conf, sealed=given.sealed) == ["-Dours=1", "-Dx=CANARY"]
    assert "spark.driver.note" not in launched
    assert "CANARY" not in launched["spark.driver.extraJavaOptions"]
    assert re.search(conf["spark.redaction.regex"], "x")
    # the driver's class path is made of them when the JVM starts
    assert "spark.jars" in launched


@pytest.mark.parametrize("master", ["yarn", "local"])
def test_command_lines_of_executors_get_no_secret(master: str) -> None:
    given = {"spark.executor.extraJavaOptions": "-Dmy.password=CANARY"}
    settings = SparkSettings(master=master, conf=given)
    if master == "local":
        assert conf_of(settings)
        return
    with pytest.raises(ConfigError) as caught:
        conf_of(settings)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert "CANARY" not in str(caught.value)


def test_command_line_holds_what_the_jvm_needs() -> None:
    conf = launch_conf(conf_of(SparkSettings(master="spark://h:1", driver_memory="3g")))
    assert conf["spark.master"] == "spark://h:1"
    assert conf["spark.driver.memory"] == "3g"
    assert "spark.jars" in conf


def test_settings_do_not_print_their_secrets() -> None:
    assert "CANARY" not in repr(SparkSettings(conf={"spark.x": "CANARY"}))


def test_pipeline_file_gives_the_settings(tmp_path: Path) -> None:
    text = """
name: games
source: {type: delta, path: ./t}
payload: {format: json}
tables: {each: "{topic}"}
lake: {path: ./lake}
spark: {master: "local[3]", driver_memory: 2g, conf: {spark.x: y}}
"""
    loaded = load_text(text, file="p.yaml", environ={})
    settings = SparkSettings.of(loaded, log_file=tmp_path / "spark.log", short_lived=False)
    assert settings == SparkSettings(
        master="local[3]",
        driver_memory="2g",
        conf={"spark.x": "y"},
        log_file=tmp_path / "spark.log",
    )
    assert conf_of(settings)["spark.sql.shuffle.partitions"] == "3"


@pytest.mark.parametrize(
    ("machine", "container", "expected"),
    [(2, 64, "1024m"), (8, 64, "2048m"), (64, 64, "4096m"), (64, 6, "1536m")],
)
def test_driver_takes_a_quarter_of_what_it_may_use(
    machine: int, container: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        total = machine << 30

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    monkeypatch.setattr(module, "_container_limit", lambda: container << 30)
    assert default_driver_memory() == expected


@pytest.mark.parametrize(
    ("master", "environment", "conf", "sends"),
    [
        ("local[2]", "archive", {}, False),
        ("spark://h:7077", "auto", {}, True),
        ("yarn", "auto", {}, True),
        ("k8s://https://h", "auto", {}, False),
        ("k8s://https://h", "archive", {}, True),
        ("spark://h:7077", "workers", {}, False),
        ("spark://h:7077", "auto", {"spark.pyspark.python": "/opt/python"}, False),
    ],
)
def test_packages_are_sent_where_no_machine_has_them(
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    environment: str,
    conf: dict[str, str],
    sends: bool,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    settings = SparkSettings(master=master, environment=environment, conf=conf)
    assert settings.sends_packages is sends
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert settings.sends_packages is (sends and environment == "archive")


def test_sent_packages_stand_beside_the_archives_of_the_user() -> None:
    settings = SparkSettings(master="spark://h:7077", conf={"spark.archives": "/own.zip#own"})
    conf = spark_conf(settings, app_name="games", archive=Path("/cache/a.tar.gz"))
    assert conf["spark.archives"] == "/cache/a.tar.gz#environment,/own.zip#own"
    assert conf["spark.pyspark.python"] == "./environment/bin/python"
