"""Places in the pipeline file of settings of `shape`, for what `plan` says about them."""

from __future__ import annotations

from distributary.config.load import Loaded
from distributary.model.names import printable
from distributary.model.rules.expectation import any_fits, type_spellings


def setting_place(loaded: Loaded, setting: str, *, table: str = "", type_name: str = "") -> str:
    """Return file, line and column of a setting such as `set.email`; empty if it is not known.

    It is that of the first entry which has the setting and applies to the table or the type.
    """
    # the setting of a function has the name of the function behind it
    key = setting.partition(" ")[0]
    for number, entry in enumerate(loaded.config.shape):
        if table and not any_fits(entry.tables, [table]):
            continue
        if type_name and not any_fits(entry.types, type_spellings(type_name)):
            continue
        origin = loaded.origin(f"shape[{number}].{key}")
        if origin.line:
            return f"{printable(origin.name)}:{origin.line}:{origin.column}"
    return ""
