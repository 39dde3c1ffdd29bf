"""An id gets another subject later: a cache that kept it before makes no dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.config.load import load_text
from distributary.engine.planning.schema_lookup import SchemaLookup
from distributary.errors import ErrorCode
from distributary.model.routing import RouteKey
from distributary.registry.cached_registry import CachedRegistry
from tests.registry.scratch import ScratchRegistry

PIPELINE = """
name: games
source: {{type: delta, path: {root}/wrapper}}
registry: {{path: {root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game, payload: payload}}
payload: {{format: protobuf, subject: {rule}}}
tables: {{each: 'silver_{{type}}'}}
lake: {{path: {root}}}
"""
EVENT = 'syntax = "proto3"; message event { string id = 1; }'


@pytest.mark.parametrize("rule", ["auto", "'{type}-value'"])
def test_a_schema_that_another_type_registered_first_is_its_own_too(
    tmp_path: Path, rule: str
) -> None:
    text = PIPELINE.format(root=tmp_path, rule=rule)
    config = load_text(text, file="games.yaml", environ={}).config
    server = ScratchRegistry()
    schema_id = server.register("go-value", EVENT)
    lookup = SchemaLookup(config, CachedRegistry(server, folder=tmp_path / "cache"), None)
    chess = RouteKey("chess", schema_id)
    refused = lookup.wrong_subject(chess, lookup.of(chess), ["go", "chess"])
    assert refused is not None and refused.code is ErrorCode.WRONG_SUBJECT
    assert server.register("chess-value", EVENT) == schema_id
    assert lookup.wrong_subject(chess, lookup.of(chess), ["go", "chess"]) is None
    # and where an earlier process has kept the id
    assert lookup.wrong_subject(RouteKey("go", schema_id), lookup.of(chess), []) is None
