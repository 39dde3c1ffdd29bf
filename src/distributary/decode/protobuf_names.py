"""What the fields of a message are called in the lake."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor


def lake_names(descriptor: Descriptor, *, top: bool) -> dict[int, tuple[str, str]]:
    """By field number: the name, and a note where it is not the name of the field.

    A lake's names do not differ by case, and names with a leading underscore belong to the
    pipeline's own columns at the top. The lowest field number keeps its name, because it is most
    likely the older field: a later field must not rename a column that exists.
    """
    taken: set[str] = set()
    given: dict[int, tuple[str, str]] = {}
    others = []
    for field in sorted(descriptor.fields, key=lambda f: f.number):
        if field.name.lower() in taken or (top and field.name.startswith("_")):
            others.append(field)
        else:
            taken.add(field.name.lower())
            given[field.number] = (field.name, "")
    for field in others:
        name = f"field{field.name}" if top and field.name.startswith("_") else field.name
        while name.lower() in taken:
            name = f"{name}__{field.number}"
        taken.add(name.lower())
        given[field.number] = (name, f"renamed from {field.name}")
    return given
