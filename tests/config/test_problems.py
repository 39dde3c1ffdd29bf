from __future__ import annotations

import pickle
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.base import similarity
from distributary.config.file.document import Node, PipelineFileError, Problem, parse
from distributary.config.load import load_text
from distributary.errors import ConfigError, ErrorCode

Problems = Callable[..., list[Problem]]
UNKNOWN, MISSING, INVALID = (
    ErrorCode.CONFIG_UNKNOWN_KEY,
    ErrorCode.CONFIG_MISSING_KEY,
    ErrorCode.CONFIG_INVALID,
)
TEXTS = [p.read_text() for p in sorted((Path(__file__).parent / "cases").glob("*.yaml"))]
ANY_VALUE = {
    "KAFKA_SERVER": "h:1",
    "SR_URL": "http://h",
    "LAKE_PATH": "/l",
    "KAFKA_KEY": "k",
    "KAFKA_SECRET": "s",
    "SR_API_KEY": "k",
    "SR_API_SECRET": "s",
}


def keys(node: Node) -> Iterator[tuple[str, int, int]]:
    for key, below in node.entries.items():
        yield key, below.key_origin.line, below.key_origin.column
        yield from keys(below)


PLACES = [(text, *place) for text in TEXTS for place in keys(parse(text, file="pipeline.yaml")[0])]


def misspelt(word: str, chance: random.Random) -> str:
    at = chance.randrange(len(word))
    letter = chance.choice(string.ascii_lowercase)
    match chance.randrange(4):
        case 0:
            return word[:at] + word[at + 1 :]
        case 1:
            return word[:at] + letter + word[at:]
        case 2:
            return word[:at] + letter + word[at + 1 :]
    return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


@given(st.sampled_from(PLACES), st.randoms(use_true_random=False))
def test_a_misspelt_key_is_one_problem_with_its_line_and_the_nearest_key(
    place: tuple[str, str, int, int], chance: random.Random
) -> None:
    text, key, line, column = place
    typo = misspelt(key, chance)
    known = {k for _, k, _, _ in PLACES} | {"urls", "topic", "key", "limits"}
    if typo in known or not typo:
        return
    lines = text.splitlines(keepends=True)
    row = lines[line - 1]
    lines[line - 1] = row[: column - 1] + typo + row[column - 1 + len(key) :]
    with pytest.raises(PipelineFileError) as caught:
        load_text("".join(lines), environ=ANY_VALUE)
    (problem,) = [p for p in caught.value.problems if p.code is UNKNOWN]
    assert (problem.line, problem.column) == (line, column)
    assert problem.path.rpartition(".")[2] == typo
    assert similarity(typo, problem.suggestion) >= similarity(typo, key)
    if problem.suggestion == key:
        assert caught.value.problems == (problem,)


def test_a_line_says_place_code_key_and_what_was_meant(problems_of: Problems, minimal: str) -> None:
    (problem,) = problems_of(minimal.replace("  topics:", "  start_offsets: latest\n  topics:"))
    assert str(problem).split("  ")[:3] == [
        "pipeline.yaml:5:3",
        "CONFIG_UNKNOWN_KEY",
        "source.start_offsets",
    ]
    assert problem.suggestion == "starting_offsets"


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file(problems_of: Problems) -> None:
    problems = problems_of(
        """\
name: ${env:NAME}
name: again
source:
  type: kafka
  bootstrap_servers: no port
  topics: []
  topic_patern: x
  max_records_per_batch: many
  security: {protocol: SASL_SLS}
  fail_on_data_loss: perhaps
payload:
  format: protobuff
tables:
  each: "{tpye}"
  metadata: [key, ofset]
  unified: {mode: wide}
lake: ./lake
trigger: every 10
run: {lease: 0s, publish_attempts: 0, keep_manifests: 1.5}
limits: {max_payload_bytes: large}
banana: 1
"""
    )
    found = [(p.line, p.path, p.code, p.suggestion) for p in problems]
    assert found == [
        (2, "name", ErrorCode.CONFIG_SYNTAX, ""),
        (5, "source.bootstrap_servers", INVALID, ""),
        (7, "source.topic_patern", UNKNOWN, "topic_pattern"),
        (8, "source.max_records_per_batch", INVALID, ""),
        (9, "source.security.protocol", INVALID, "SASL_SSL"),
        (10, "source.fail_on_data_loss", INVALID, ""),
        (12, "payload.format", INVALID, "protobuf"),
        (14, "tables.each", INVALID, "{type}"),
        (15, "tables.metadata[1]", INVALID, "offset"),
        (16, "tables.unified.name", MISSING, ""),
        (17, "lake", INVALID, ""),
        (18, "trigger", INVALID, ""),
        (19, "run.lease", INVALID, ""),
        (19, "run.publish_attempts", INVALID, ""),
        (19, "run.keep_manifests", INVALID, ""),
        (20, "limits.max_payload_bytes", INVALID, ""),
        (21, "banana", UNKNOWN, ""),
    ]


def test_a_missing_variable_names_variable_and_line(problems_of: Problems, minimal: str) -> None:
    text = minimal.replace("[events]", "${env:TOPICS}").replace("kafka", "${env:KIND}")
    problems = problems_of(text, environ={"TOPIC": "x"})
    assert [(p.line, p.path, p.code, p.suggestion) for p in problems] == [
        (3, "source.type", ErrorCode.CONFIG_MISSING_VARIABLE, ""),
        (5, "source.topics", ErrorCode.CONFIG_MISSING_VARIABLE, "TOPIC"),
    ]
    assert "TOPICS" in problems[1].message


def test_missing_sections_and_keys(problems_of: Problems) -> None:
    problems = problems_of("name: x\nsource:\n  topics: [a]\nlake:\n  path:\n")
    assert [(p.line, p.path, p.code) for p in problems] == [
        (1, "tables", MISSING),
        (2, "source.type", MISSING),
        (4, "lake.path", MISSING),
    ]


@pytest.mark.parametrize(("kind", "meant"), [("kafak", "kafka"), ("Delta", "delta"), ("x", "")])
def test_an_unknown_kind_of_source(
    problems_of: Problems, minimal: str, kind: str, meant: str
) -> None:
    (problem,) = problems_of(minimal.replace("type: kafka", f"type: {kind}"))
    assert (problem.line, problem.path, problem.suggestion) == (3, "source.type", meant)


def test_a_key_at_the_wrong_level_is_sent_to_its_section(
    problems_of: Problems, minimal: str
) -> None:
    (problem,) = problems_of(minimal + "publisher: spark\n")
    assert (problem.code, problem.suggestion) == (UNKNOWN, "tables.publisher")


def test_an_empty_value_is_as_if_it_was_not_there(minimal: str) -> None:
    text = minimal + "registry:\nlimits:\ntrigger: ${env:T:-}\nspark:\n  master: ''\n"
    with pytest.raises(PipelineFileError):
        load_text(text, environ={})
    config = load_text(text.replace("''", "${env:M:-}"), environ={}).config
    assert (config.registry, str(config.trigger)) == (None, "available_now")
    assert config.spark.master == "local[*]"


def test_values_from_variables_get_the_type_of_their_setting(minimal: str) -> None:
    text = minimal + "limits: {max_depth: '${env:D:-7}'}\n"
    text = text.replace("topics:", 'fail_on_data_loss: "${env:F:-false}"\n  topics:')
    config = load_text(text, environ={}).config
    assert config.limits.max_depth == 7
    assert config.source.fail_on_data_loss is False  # type: ignore[union-attr]


def test_hostile_keys_are_cut_and_escaped(problems_of: Problems, minimal: str) -> None:
    evil = '"\\e[31m' + "x" * 5000 + '"'
    (problem,) = problems_of(f"{minimal}{evil}: 1\n")
    assert "\x1b" not in str(problem)
    assert len(str(problem)) < 300


def test_the_error_is_a_config_error_that_pickles(problems_of: Problems, minimal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(f"{minimal}banana: 1\n", environ={})
    error = caught.value
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(error, PipelineFileError)
    assert copy.problems == error.problems
    assert (copy.code, copy.exit_code, str(copy)) == (UNKNOWN, 2, str(error))
    assert error.as_dict()["problems"][0]["line"] == 12
    assert error.what and error.where and error.evidence and error.next_step
