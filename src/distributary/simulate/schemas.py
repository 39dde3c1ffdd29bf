"""The schemas that the simulators register, as their authors would have written them."""

from __future__ import annotations

WRAPPER_SUBJECT = "wrapper-value"
WRAPPER = """\
message wrapper {
  optional string game_name = 1;
  optional int32 schema_id = 2;
  optional bytes payload = 3;
}
"""

PEOPLE_SUBJECT = "people-value"

FIRST_CUSTOM_FIELD = 5
CHANGED_FIELD = "is_connection_stable"
CHANGED_NUMBER = 10_000
"""Far above every custom column, and below the numbers that protobuf keeps for itself."""
MAX_VERSION = 5_000


def event_subject(game: str) -> str:
    """Where the versions of a game's event are registered."""
    return f"{game}-value"


def custom_columns(game: str, version: int) -> tuple[str, ...]:
    """Version v of a game has v columns of its own."""
    return tuple(f"col_{game}_{i}" for i in range(version))


def event_columns(game: str, version: int) -> tuple[str, ...]:
    """All fields of a game's event, by name; a changed type keeps its name."""
    common = ("game_name", "user_name", "event_timestamp", CHANGED_FIELD)
    return (*common, *custom_columns(game, version))


def event(game: str, version: int, *, changed: bool = False) -> str:
    """The event of a game; `changed` turns a string into a number under a new field number."""
    lines = [
        'syntax = "proto3";',
        'import "google/protobuf/timestamp.proto";',
        "message event {",
        "  reserved 4;" if changed else None,
        "  string game_name = 1;",
        "  string user_name = 2;",
        "  google.protobuf.Timestamp event_timestamp = 3;",
        None if changed else f"  string {CHANGED_FIELD} = 4;",
        *(
            f"  optional string {column} = {FIRST_CUSTOM_FIELD + i};"
            for i, column in enumerate(custom_columns(game, version))
        ),
        f"  int32 {CHANGED_FIELD} = {CHANGED_NUMBER};" if changed else None,
        "}",
    ]
    return "".join(f"{line}\n" for line in lines if line is not None)


def person_columns(version: int) -> tuple[str, ...]:
    """All fields of a person: version v has v measures."""
    return ("id", "name", "email", "quantity", *(f"measure{i}" for i in range(version)))


def person(version: int) -> str:
    """A person with `version` measures; the package stays the same, so it is the same message."""
    measures = "".join(
        f"  optional float measure{i} = {FIRST_CUSTOM_FIELD + i};\n" for i in range(version)
    )
    return f"""\
syntax = "proto2";
package example;
message Person {{
  optional int64 id = 1;
  optional string name = 2;
  optional string email = 3;
  optional int64 quantity = 4;
{measures}}}
"""
