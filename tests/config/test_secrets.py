from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distributary.config.base import hide_credentials, is_secret_name, mask
from distributary.config.file.document import PipelineFileError
from distributary.config.file.show import as_json, rows
from distributary.config.load import Loaded, load, load_text

Load = Callable[..., Loaded]
CANARY = "canary-7f3a"
ENVIRON = {"SECRET": CANARY}


def everything_shown(loaded: Loaded) -> str:
    lines = [f"{row.key} {row.text} {row.origin} {row!r}" for row in rows(loaded)]
    warnings = [str(w) for w in loaded.warnings]
    return "\n".join([*lines, *warnings, json.dumps(as_json(loaded)), repr(loaded)])


def secret_files(tmp_path: Path, minimal: str) -> Iterator[str]:
    (tmp_path / "s").write_text(CANARY)
    file = f"${{file:{tmp_path}/s}}"
    sasl = "security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: %s}"
    for value in (CANARY, '"${env:SECRET}"', f'"{file}"'):
        yield minimal.replace("topics:", f"{sasl % value}\n  topics:")
        yield f"{minimal}registry: {{url: http://r, username: u, password: {value}}}\n"
        yield f"{minimal}registry: {{url: http://r, token: {value}}}\n"
        yield f"{minimal}  storage_options: {{aws_secret_access_key: {value}}}\n"
        yield f"{minimal}spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: {value}}}}}\n"
        options = f"options: {{kafka.sasl.jaas.config: {value}}}"
        yield minimal.replace("topics:", f"{options}\n  topics:")
    # whatever setting a file ends up in, its content is hidden
    yield minimal.replace("./lake", f"s3://{file}/lake")
    yield minimal.replace("[events]", f'["x{file}"]')
    yield f"{minimal}spark: {{conf: {{spark.app.note: '{file}'}}}}\n"


def test_no_secret_is_ever_shown(tmp_path: Path, minimal: str) -> None:
    for text in secret_files(tmp_path, minimal):
        loaded = load_text(text, environ=ENVIRON)
        shown = everything_shown(loaded)
        assert CANARY not in shown, text
        assert "***" in shown
        assert loaded.mask(f"failed with {CANARY}!") == "failed with ***!"


def test_a_secret_in_a_sealed_setting_is_not_in_the_model_either(minimal: str) -> None:
    text = f"{minimal}registry: {{url: http://r, token: {CANARY}}}\n"
    text += f"spark: {{conf: {{spark.x.password: {CANARY}}}}}\n"
    loaded = load_text(text, environ={})
    assert CANARY not in f"{loaded.config!r}{loaded.config}{loaded.config.model_dump_json()}"


def test_no_value_is_in_an_error(tmp_path: Path, minimal: str) -> None:
    (tmp_path / "s").write_text(f"{CANARY}\nsecond line")
    places = ["127.0.0.1:9092", "json", "kafka", "./lake", '"{topic}"', "small", "[events]"]
    values = (f"{CANARY} {{x}} \\e", "${env:SECRET}{", f"${{file:{tmp_path}/s}}")
    refused = 0
    for old in places:
        for value in values:
            text = minimal.replace(old, json.dumps(value))
            try:
                load_text(text, environ=ENVIRON)
            except PipelineFileError as error:
                refused += 1
                shown = f"{error}{error!r}{error.as_dict()}{pickle.dumps(error)!r}"
                assert CANARY not in shown
    assert refused > len(places)


def test_nothing_of_the_cloud_case_is_shown(cloud: dict[str, str]) -> None:
    loaded = load(Path(__file__).parent / "cases" / "games-cloud.yaml", environ=cloud)
    assert "canary" not in everything_shown(loaded)
    assert loaded.secrets == {cloud["KAFKA_SECRET"], cloud["SR_API_SECRET"]}


@pytest.mark.parametrize(
    "name",
    [
        "aws_secret_access_key",
        "AWS_SESSION_TOKEN",
        "kafka.sasl.jaas.config",
        "azure_account_key",
        "fs.azure.account.key.x.net",
        "kafka.ssl.keystore.password",
        "sas",
        "connectionString",
        "google_service_account_key",
        "kafka.ssl.keystore.key",
        "kafka.basic.auth.user.info",
        "spark.driver.my.pwd",
        "spark.kubernetes.driverEnv.SIGNATURE",
        "javax.net.ssl.keyStorePassword",
        "fs.azure.sas.container.account.blob.core.windows.net",
        "AZURE_STORAGE_SAS_KEY",
        "fs.s3a.encryption.key",
        "key_passphrase",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["aws_region", "kafka.client.id", "spark.sql.shuffle.partitions", "allow_http"]
)
def test_names_that_are_not(name: str) -> None:
    assert not is_secret_name(name)


OPTIONS = f"-Xss4m -Djavax.net.ssl.keyStorePassword={CANARY} -Dplain=1"
CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={CANARY}"


@pytest.mark.parametrize(
    "setting",
    [
        f"spark.driver.extraJavaOptions: '{OPTIONS}'",
        f"spark.driver.extraJavaOptions: '\"-Dmy.password={CANARY} {CANARY}\"'",
        f"spark.driver.extraJavaOptions: '\"-Dmy.password={CANARY}'",
        f"spark.x: '{CONNECTION}'",
        f"spark.x: 'https://user:{CANARY}@host/'",
        "spark.x: '${env:SECRET}'",
        "spark.x: 'before ${env:NONE:-${env:SECRET}}'",
    ],
)
def test_secrets_in_settings_with_harmless_names(setting: str, minimal: str) -> None:
    loaded = load_text(f"{minimal}spark:\n  conf:\n    {setting}\n", environ=ENVIRON)
    assert CANARY not in everything_shown(loaded)
    assert loaded.mask(f"failed with {CANARY}!") == "failed with ***!"


def test_options_of_the_jvm_are_hidden_one_by_one(minimal: str) -> None:
    text = f"{minimal}spark: {{conf: {{spark.driver.extraJavaOptions: '{OPTIONS}'}}}}\n"
    shown = {row.key: row.value for row in rows(load_text(text, environ={}))}
    hidden = "-Xss4m -Djavax.net.ssl.keyStorePassword=*** -Dplain=1"
    assert shown["spark.conf.spark.driver.extraJavaOptions"] == hidden


def test_what_a_variable_gave_to_a_free_form_option_is_sealed(minimal: str) -> None:
    options = "options: {kafka.a: '${env:SECRET}', kafka.b: plain, kafka.c: '${env:NONE:-d}'}"
    text = minimal.replace("topics:", f"{options}\n  topics:")
    text += "spark: {conf: {spark.x: '${env:FLAG}', spark.y: plain}}\n"
    loaded = load_text(text, environ=ENVIRON | {"FLAG": "true"})
    assert loaded.sealed == {"kafka.a", "spark.x"}
    assert loaded.mask("it is true") == "it is true"


def test_masking() -> None:
    assert hide_credentials("s3://key:secret@host/a@b") == "s3://***@host/a@b"
    assert mask("abcdef abcd", ["abcd", "abcdef", "", "a"]) == "*** ***"
