"""A pipeline file as a tree in which every value knows its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from distributary.config.origin import Origin

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list or a mapping.

    Scalars of a file are text, or None where nothing is written: the models give them types, so
    that `${env:PORT}` and `9092` are read alike.
    """

    value: object | tuple[Node, ...] | Mapping[str, Node]
    origin: Origin
    key: Origin | None = None
    """The place of the key in front of it."""
    expand: bool = False
    """Whether `${...}` in it is replaced: in files yes, in flags and variables no."""

    @property
    def entries(self) -> Mapping[str, Node]:
        """The content of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """The content of a list; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def key_origin(self) -> Origin:
        """Where to point when the setting as a whole is meant."""
        return self.key or self.origin

    def at(self, path: Path) -> Node:
        """The node at a path, or the deepest one on the way to it."""
        node = self
        for part in path:
            below = node.child(part)
            if below is None:
                break
            node = below
        return node

    def child(self, part: str | int) -> Node | None:
        """The node one step down."""
        if isinstance(part, int):
            return self.items[part] if part < len(self.items) else None
        return self.entries.get(part)

    def has(self, path: Path) -> bool:
        """Whether something is written at a path."""
        node: Node | None = self
        for part in path:
            node = node.child(part) if node else None
        return node is not None

    def with_entry(self, key: str, node: Node) -> Node:
        """A copy with one entry added or replaced."""
        return replace(self, value={**self.entries, key: node})

    def without(self, path: Path) -> Node:
        """A copy in which a path is not there, nor a mapping that held nothing else."""
        head, *rest = path
        kept = dict(self.entries)
        if not rest:
            kept.pop(str(head), None)
        elif str(head) in kept:
            kept[str(head)] = kept[str(head)].without(tuple(rest))
            if not kept[str(head)].value:
                del kept[str(head)]
        return replace(self, value=kept)

    def without_unset(self) -> Node:
        """A copy without entries that have no value: their defaults hold."""
        if self.items:
            return replace(self, value=tuple(item.without_unset() for item in self.items))
        if not isinstance(self.value, dict):
            return self
        kept = {key: node.without_unset() for key, node in self.entries.items()}
        return replace(self, value={k: n for k, n in kept.items() if n.value is not None})

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Scalars and lists with their paths; a list of scalars also stands for its items."""
        if isinstance(self.value, dict):
            for key, node in self.entries.items():
                yield from node.leaves((*path, key))
        elif any(item.entries for item in self.items):
            for index, item in enumerate(self.items):
                yield from item.leaves((*path, index))
        else:
            yield path, self

    def plain(self) -> object:
        """The tree as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.entries.items()}
        return [node.plain() for node in self.items] if self.items else self.value


def graft(value: object, origin: Origin) -> Node:
    """A value from a flag as a tree of its own."""
    if isinstance(value, Mapping):
        return Node({str(key): graft(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Node(tuple(graft(item, origin) for item in value), origin)
    return Node(value, origin)


def with_list_origin(node: Node) -> Origin:
    """A list's origin, with the references and secrecy of its items."""
    references = dict.fromkeys(r for item in node.items for r in item.origin.references)
    return replace(
        node.origin,
        references=(*node.origin.references, *references),
        secret=node.origin.secret or any(item.origin.secret for item in node.items),
    )


def dotted(path: Path) -> str:
    """`source.topics[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
