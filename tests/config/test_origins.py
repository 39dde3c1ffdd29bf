from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.config.file.document import OriginKind, PipelineFileError, SettingOrigin
from distributary.config.load import Deprecation, Loaded, load_text
from distributary.errors import ErrorCode

Load = Callable[..., Loaded]
PATH_VARIABLE = "DISTRIBUTARY_LAKE__PATH"


def test_flag_beats_variable_beats_file_beats_default(loaded: Load) -> None:
    variable, flag = {PATH_VARIABLE: "/variable"}, {"lake.path": "/flag"}
    results = [
        loaded(),
        loaded(environ=variable),
        loaded(environ=variable, overrides=flag),
        loaded(overrides=flag),
    ]
    assert [(r.config.lake.path, str(r.origin("lake.path"))) for r in results] == [
        ("./lake", "pipeline.yaml:11"),
        ("/variable", f"variable {PATH_VARIABLE}"),
        ("/flag", "flag lake.path"),
        ("/flag", "flag lake.path"),
    ]
    assert str(results[0].origin("run.lease")) == "default"


def test_the_lake_that_commands_look_at_is_not_a_section(loaded: Load) -> None:
    assert loaded(environ={"DISTRIBUTARY_LAKE": "/elsewhere"}).config.lake.path == "./lake"
    meant = loaded(environ={"DISTRIBUTARY_LAKE": "{path: /variable}"})
    assert meant.config.lake.path == "/variable"


def test_a_reference_keeps_its_line_and_its_name(minimal: str) -> None:
    text = minimal.replace("./lake", "${env:ROOT}/${env:SUB:-sub}")
    loaded = load_text(text, environ={"ROOT": "/data"})
    assert loaded.config.lake.path == "/data/sub"
    assert loaded.origin("lake.path") == SettingOrigin(
        OriginKind.FILE, "pipeline.yaml", 11, 9, ("env:ROOT", "env:SUB, not set")
    )


def test_a_list_has_the_references_of_its_items(minimal: str) -> None:
    text = minimal.replace("[events]", '[a, "${env:B}", "${env:C:-}"]')
    loaded = load_text(text, environ={"B": "b"})
    assert loaded.config.topics == ("a", "b")
    assert loaded.origin("source.topics").references == ("env:B",)


def test_variables_reach_every_level_and_take_lists(loaded: Load) -> None:
    config = loaded(
        environ={
            "DISTRIBUTARY_NAME": "other",
            "DISTRIBUTARY_TRIGGER": "every 5s",
            "DISTRIBUTARY_SOURCE__TOPICS": "a, b",
            "DISTRIBUTARY_SOURCE__SECURITY__PROTOCOL": "SSL",
            "DISTRIBUTARY_SOURCE__FAIL_ON_DATA_LOSS": "false",
            "DISTRIBUTARY_TABLES__PARTITION_BY": "[_date, country]",
            "DISTRIBUTARY_SPARK__CONF": "{spark.ui.enabled: false}",
            "DISTRIBUTARY_LAKE__STORAGE_OPTIONS__AWS_REGION": "x",
            "DISTRIBUTARY_LIMITS__MAX_DEPTH": "",
            "DISTRIBUTARY_HOME": "/not/ours",
            "HOME": "/home",
        }
    ).config
    assert (config.name, str(config.trigger)) == ("other", "every 5s")
    assert config.topics == ("a", "b")
    assert config.source.security.protocol == "SSL"  # type: ignore[union-attr]
    assert config.source.fail_on_data_loss is False  # type: ignore[union-attr]
    assert config.tables.partition_by == ("_date", "country")
    assert config.spark.options == {"spark.ui.enabled": "false"}
    assert config.lake.options == {"aws_region": "x"}
    assert config.limits.max_depth == 100


def test_flags_are_typed_or_text_and_keep_dots_below_free_form_settings(loaded: Load) -> None:
    config = loaded(
        overrides={
            "trigger": "continuous",
            "source.topics": ["x", "y"],
            "source.max_records_per_batch": 7,
            "source.options.kafka.client.id": "me",
            "spark.conf.spark.sql.shuffle.partitions": "8",
            "tables": {"bronze": "raw_events"},
        }
    ).config
    assert config.topics == ("x", "y")
    assert config.source.max_records_per_batch == 7  # type: ignore[union-attr]
    assert list(config.source.options) == ["kafka.client.id"]  # type: ignore[union-attr]
    assert config.spark.options == {"spark.sql.shuffle.partitions": "8"}
    assert (config.tables.bronze, config.tables.each) == ("raw_events", None)


def test_a_flag_spares_the_variable_of_the_file(minimal: str) -> None:
    text = minimal.replace("./lake", "${env:NOT_SET}")
    assert load_text(text, environ={}, overrides={"lake.path": "/x"}).config.lake.path == "/x"


def test_values_of_flags_and_variables_are_not_expanded(loaded: Load) -> None:
    config = loaded(
        overrides={"lake.path": "${env:A}"}, environ={"DISTRIBUTARY_SPARK__MASTER": "${env:A}"}
    ).config
    assert (config.lake.path, config.spark.master) == ("${env:A}", "${env:A}")


def test_mistakes_in_flags_and_variables_name_them(loaded: Load) -> None:
    with pytest.raises(PipelineFileError) as caught:
        loaded(
            environ={"DISTRIBUTARY_LAKE__PAHT": "x", "DISTRIBUTARY_RUN__LEASE": "soon"},
            overrides={"tables.formt": "delta", "name.first": "x"},
        )
    assert {(p.file, p.line, p.path, p.code, p.suggestion) for p in caught.value.problems} == {
        ("variable DISTRIBUTARY_LAKE__PAHT", 0, "lake.paht", ErrorCode.CONFIG_UNKNOWN_KEY, "path"),
        ("variable DISTRIBUTARY_RUN__LEASE", 0, "run.lease", ErrorCode.CONFIG_INVALID, ""),
        ("flag tables.formt", 0, "tables.formt", ErrorCode.CONFIG_UNKNOWN_KEY, "format"),
        ("flag name.first", 0, "name.first", ErrorCode.CONFIG_INVALID, ""),
    }


def test_a_variable_that_is_no_list_is_refused(loaded: Load) -> None:
    with pytest.raises(PipelineFileError) as caught:
        loaded(environ={"DISTRIBUTARY_SOURCE__TOPICS": "[a"})
    assert caught.value.problems[0].file == "variable DISTRIBUTARY_SOURCE__TOPICS"


def test_a_misspelt_section_in_a_variable_is_a_warning(loaded: Load) -> None:
    (warning,) = loaded(environ={"DISTRIBUTARY_SUORCE__TOPICS": "x"}).warnings
    assert (warning.code, warning.suggestion) == (ErrorCode.CONFIG_UNKNOWN_KEY, "source")


DEPRECATED = (
    Deprecation("storage.folder", "lake.path", "2.0"),
    Deprecation("limits.patience", "", "1.5"),
    Deprecation("topic_list", "source.topics", "2.0"),
)


def test_a_deprecated_key_works_and_warns_with_its_line(minimal: str) -> None:
    text = minimal.replace("lake:\n  path: ./lake", "storage:\n  folder: /old")
    text += "limits:\n  patience: 3\n"
    with pytest.raises(PipelineFileError):
        load_text(text, environ={})
    loaded = load_text(text, environ={}, deprecations=DEPRECATED)
    assert loaded.config.lake.path == "/old"
    assert str(loaded.origin("lake.path")) == "pipeline.yaml:11"
    first, second = loaded.warnings
    assert (first.line, first.path, first.suggestion) == (11, "storage.folder", "lake.path")
    assert first.code is ErrorCode.CONFIG_DEPRECATED
    assert "2.0" in first.message
    assert (second.line, second.path) == (13, "limits.patience")
    assert "1.5" in second.message


def test_deprecated_keys_work_in_flags_and_the_stronger_layer_wins(minimal: str) -> None:
    text = minimal.replace("lake:\n  path: ./lake", "storage:\n  folder: /old")
    loaded = load_text(
        text,
        environ={PATH_VARIABLE: "/variable"},
        overrides={"storage.folder": "/flag"},
        deprecations=DEPRECATED,
    )
    assert loaded.config.lake.path == "/flag"
    assert [w.file for w in loaded.warnings] == ["pipeline.yaml", "flag storage.folder"]


def test_old_and_new_key_together_are_refused(minimal: str) -> None:
    with pytest.raises(PipelineFileError) as caught:
        load_text(minimal + "topic_list: [a]\n", environ={}, deprecations=DEPRECATED)
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (12, "topic_list")


def test_relative_paths_stay_as_given(loaded: Load, tmp_path: Path) -> None:
    lake = loaded().config.lake
    assert (lake.path, lake.checkpoint) == ("./lake", "./lake/_checkpoints")
    assert lake.local_path == Path.cwd() / "lake"
    assert loaded(overrides={"lake.path": f"file://{tmp_path}"}).config.lake.local_path == tmp_path
