"""Whether a document is an OpenLineage event: checked against the classes made from its spec."""

from __future__ import annotations

import inspect
import types
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import attr
from openlineage.client import facet_v2
from openlineage.client.event_v2 import RunEvent
from openlineage.client.generated import base

_NAMESPACE = {name: getattr(base, name) for name in dir(base)}


@cache
def facet_classes() -> dict[str, type]:
    """Every facet of the spec by the address of its schema."""
    found: dict[str, type] = {}
    for module in vars(facet_v2).values():
        if inspect.ismodule(module):
            for each in vars(module).values():
                own = inspect.isclass(each) and issubclass(each, base.BaseFacet)
                if own and each.__module__ != base.__name__:
                    found[each._get_schema()] = each
    return found


def check_event(document: Any) -> None:
    """Fail unless it is a run event whose every part is as its class says."""
    _check(document, RunEvent, "event")
    datetime.fromisoformat(document["eventTime"])
    UUID(document["run"]["runId"])
    for part, kinds in (
        (document["run"], ("facets",)),
        (document["job"], ("facets",)),
        *((each, ("facets", "inputFacets")) for each in document["inputs"]),
        *((each, ("facets", "outputFacets")) for each in document["outputs"]),
    ):
        for kind in kinds:
            for name, facet in part.get(kind, {}).items():
                _check_facet(name, facet)


def _check_facet(name: str, facet: dict[str, Any]) -> None:
    assert facet["_producer"].startswith("urn:distributary:"), name
    kind = facet_classes().get(facet["_schemaURL"])
    if kind is None:
        # one of our own: anything is allowed beside the two fields that all have
        assert facet["_schemaURL"].endswith("#/$defs/RunFacet"), name
        return
    _check(facet, kind, name)


def _check(value: Any, hint: Any, path: str) -> None:
    origin = get_origin(hint)
    if hint is Any:
        return
    if origin in (Union, types.UnionType):
        allowed = [each for each in get_args(hint) if each is not type(None)]
        assert len(allowed) == 1, path
        _check(value, allowed[0], path)
    elif origin is list:
        assert isinstance(value, list), path
        for number, each in enumerate(value):
            _check(each, get_args(hint)[0], f"{path}[{number}]")
    elif origin is dict:
        assert isinstance(value, dict), path
        for name, each in value.items():
            inner = get_args(hint)[1]
            if not (inspect.isclass(inner) and issubclass(inner, base.BaseFacet)):
                _check(each, inner, f"{path}.{name}")
    elif inspect.isclass(hint) and issubclass(hint, Enum):
        assert value in {member.value for member in hint}, path
    elif attr.has(hint):
        _check_object(value, hint, path)
    else:
        assert type(value) is hint, (path, value, hint)


def _check_object(value: Any, kind: type, path: str) -> None:
    assert isinstance(value, dict), path
    fields = {each.name: each for each in attr.fields(kind)}
    assert value.keys() <= fields.keys(), (path, value.keys() - fields.keys())
    required = {name for name, each in fields.items() if each.default is attr.NOTHING}
    assert required <= value.keys(), (path, required - value.keys())
    module = inspect.getmodule(kind)
    hints = get_type_hints(kind, {**_NAMESPACE, **vars(module)})
    for name, each in value.items():
        _check(each, hints[name], f"{path}.{name}")
