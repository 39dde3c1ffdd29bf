from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.deploy.pipeline_file import read_for_install
from distributary.errors import DistributaryError, ErrorCode
from tests.deploy.conftest import Write


def test_what_is_missing_here_is_no_mistake(write: Write) -> None:
    found = read_for_install(write(), environ={})
    assert found.loaded is None
    assert found.variables == ("KAFKA_SECRET",)
    assert len(found.unknown_here) == 1
    assert found.clear_secrets == ()
    assert found.name == "games" and not found.ends


def test_where_everything_is_known_the_secrets_are_hidden(write: Write) -> None:
    found = read_for_install(write(), environ={"KAFKA_SECRET": "canary-value"})
    assert found.loaded is not None
    assert "canary" not in found.loaded.mask("canary-value")
    assert "canary" not in found.text and "canary" not in repr(found)


def test_every_other_mistake_is_one(write: Write) -> None:
    with pytest.raises(DistributaryError) as caught:
        read_for_install(write("banana: 1\n"), environ={})
    assert caught.value.exit_code == 2


def test_settings_of_the_section_take_variables(write: Write) -> None:
    path = write("deploy: {kubernetes: {image: '${env:IMAGE}', port: '${env:PORT:-9000}'}}\n")
    found = read_for_install(path, environ={"IMAGE": "r/x:1"})
    assert found.deploy.kubernetes is not None
    assert (found.deploy.kubernetes.image, found.deploy.kubernetes.port) == ("r/x:1", 9000)
    changed = {"DISTRIBUTARY_DEPLOY__KUBERNETES__IMAGE": "r/y:2"}
    found = read_for_install(path, environ=changed)
    assert found.deploy.kubernetes is not None
    assert found.deploy.kubernetes.image == "r/y:2"
    with pytest.raises(DistributaryError) as caught:
        read_for_install(path, environ={})
    assert caught.value.code is ErrorCode.CONFIG_MISSING_VARIABLE


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("registry: {url: 'http://h', username: u, password: canary}", "registry.password"),
        ("registry: {url: 'http://h', token: canary}", "registry.token"),
        ("spark: {conf: {spark.x.secret: canary, spark.y: plain}}", "spark.conf.spark.x.secret"),
        ("spark: {conf: {spark.x.pwd: '${env:P:-canary}'}}", "spark.conf.spark.x.pwd"),
        ("spark: {conf: {spark.x: 'a=${env:A} -Dmy.password=canary'}}", "spark.conf.spark.x"),
        ("spark: {conf: {spark.x: 'AccountName=a;AccountKey=canary'}}", "spark.conf.spark.x"),
        ("spark: {conf: {spark.x: 'https://u:canary@host'}}", "spark.conf.spark.x"),
    ],
)
def test_secrets_in_clear_are_found(write: Write, line: str, where: str) -> None:
    found = read_for_install(write(f"{line}\n"), environ={})
    assert found.clear_secrets == (where,)


@pytest.mark.parametrize(
    "value",
    ["${env:P}", "${env:P:-}", "${file:/run/p}", "-Dmy.password=${env:P}", 'password="${env:P}";'],
)
def test_a_reference_is_no_secret_in_clear(write: Write, value: str) -> None:
    line = f"spark: {{conf: {{spark.x.jaas: {json.dumps(value)}, spark.y: {json.dumps(value)}}}}}\n"
    assert read_for_install(write(line), environ={}).clear_secrets == ()


def test_an_address_with_a_password_is_a_secret_in_clear(write: Write) -> None:
    path = write(lake="s3://key:canary@bucket/lake")
    assert read_for_install(path, environ={}).clear_secrets == ("lake.path",)


def test_a_file_that_is_not_there(own_folder: Path) -> None:
    with pytest.raises(DistributaryError) as caught:
        read_for_install(own_folder / "none.yaml", environ={})
    assert caught.value.code is ErrorCode.CONFIG_UNREADABLE
