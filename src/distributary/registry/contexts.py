"""Contexts of a registry: each has subjects and ids of its own.

:.team:orders-value     subject orders-value in context .team
:.team:                 the context itself
orders-value            in the default context, which is called `.`
"""

from __future__ import annotations

DEFAULT = "."


def prefix_of(context: str) -> str:
    """What stands before the names of a context; nothing in the default one."""
    return "" if context == DEFAULT else f":{context}:"


def context_of(name: str) -> str | None:
    """The context that a subject's name says, None where it says none."""
    if not name.startswith(":."):
        return None
    return name[1:].partition(":")[0]


def qualified(name: str, context: str) -> str:
    """A name as a registry must be asked for it; one that says its context keeps it."""
    return name if context_of(name) is not None else prefix_of(context) + name


def local(name: str, context: str) -> str:
    """A name as it is called within a context; that of another context stays as it is."""
    return name.removeprefix(prefix_of(context)) if context != DEFAULT else name


def named(text: str) -> str:
    """The name of a context however a registry spells it: `.team`, `:.team:` or nothing."""
    return text.removeprefix(":").removesuffix(":") or DEFAULT
