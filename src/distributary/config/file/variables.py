"""Replaces references such as `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` in texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from distributary.config.base import nearest
from distributary.errors import ConfigError, ErrorCode

MAX_SECRET_BYTES = 1 << 16
_MAX_NESTING = 5
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

SecretLookup = Callable[[str, str], str]
"""A function that returns the secret for a scope and a key."""


class UnresolvedError(ConfigError):
    """A reference that has no value; the message never holds a value."""

    code = ErrorCode.CONFIG_MISSING_VARIABLE


@dataclass(slots=True)
class ExpandedText:
    """A text with its references replaced."""

    text: str = ""
    references: list[str] = field(default_factory=list)
    """The references of the text, such as `env:NAME` or `env:NAME, not set`."""
    secrets: list[str] = field(default_factory=list)
    """Values that must be masked everywhere."""
    variables: list[str] = field(default_factory=list)
    """Values of variables, which must be masked in free-form options."""
    unresolved: list[UnresolvedError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Variables:
    """The sources of values for references."""

    environ: Mapping[str, str]
    databricks: SecretLookup | None = None
    """The lookup of Databricks secrets; that of the Databricks SDK when left out, if available."""

    def expand(self, text: str) -> ExpandedText:
        """Replace every reference once; values of variables are not expanded again."""
        result = ExpandedText()
        result.text = self._expand(text, result, depth=0)
        return result

    def _expand(self, text: str, expansion: ExpandedText, *, depth: int) -> str:
        done, position = "", 0
        while (start := text.find("${", position)) >= 0:
            if start > position and text[start - 1] == "$":
                # `$${` is the escape for a literal `${`
                done, position = f"{done}{text[position : start - 1]}${{", start + 2
                continue
            done += text[position:start]
            end = _closing(text, start + 2)
            if end < 0 or depth >= _MAX_NESTING:
                why = "has variables inside variables, too deep"
                if end < 0:
                    why = "has ${ without its }; write $${ for a literal one"
                expansion.unresolved.append(UnresolvedError(why))
                return done
            try:
                done += self._value(text[start + 2 : end], expansion, depth=depth)
            except UnresolvedError as error:
                expansion.unresolved.append(error)
            position = end + 1
        return done + text[position:]

    def _value(self, body: str, expansion: ExpandedText, *, depth: int) -> str:
        kind, _, argument = body.partition(":")
        match kind:
            case "env":
                return self._env(argument, expansion, depth=depth)
            case "file":
                before = len(expansion.unresolved)
                path = self._expand(argument, expansion, depth=depth + 1)
                if len(expansion.unresolved) > before:
                    return ""
                secret = _file(path, written=argument)
                expansion.references.append(f"file:{argument}")
            case "databricks":
                secret = self._databricks(argument)
                expansion.references.append(f"databricks:{argument}")
            case _:
                meant = f"${{env:{body}}}" if _NAME.fullmatch(body) else ""
                raise UnresolvedError(
                    "has ${...} that is neither env: nor file:; write $${ for a literal one",
                    suggestion=meant,
                )
        expansion.secrets.append(secret)
        return secret

    def _env(self, argument: str, expansion: ExpandedText, *, depth: int) -> str:
        name, separator, default = argument.partition(":-")
        if not _NAME.fullmatch(name):
            raise UnresolvedError("has ${env:...} without a variable's name")
        value = self.environ.get(name)
        # as in a shell, `:-` also replaces a variable that is empty
        if value or (value is not None and not separator):
            expansion.references.append(f"env:{name}")
            expansion.variables.append(value)
            return value
        if not separator:
            raise UnresolvedError(
                f"needs the variable {name}, which is not set",
                # environments hold many similar names with other meanings, so only a close match is
                # suggested
                suggestion=nearest(name, self.environ, at_least=0.85),
            )
        expansion.references.append(f"env:{name}, not set")
        return self._expand(default, expansion, depth=depth + 1)

    def _databricks(self, argument: str) -> str:
        scope, separator, key = argument.partition("/")
        if not (scope and separator and key):
            raise UnresolvedError("has ${databricks:...} that is not SCOPE/KEY")
        lookup = self.databricks or databricks_secrets(self.environ)
        if lookup is None:
            raise UnresolvedError(
                f"needs the Databricks secret {scope}/{key}, which cannot be reached from here: "
                "run on Databricks, or install distributary[databricks] and set DATABRICKS_HOST"
            )
        try:
            return lookup(scope, key)
        except Exception as error:
            # an error of the client may quote its request, so the message names only its type
            raise UnresolvedError(
                f"needs the Databricks secret {scope}/{key}, which cannot be read "
                f"({type(error).__name__}): check the scope, the key and your rights to it"
            ) from None


def databricks_secrets(environ: Mapping[str, str]) -> SecretLookup | None:
    """Return the lookup of Databricks secrets; None without its SDK or a workspace."""
    if not any(name in environ for name in ("DATABRICKS_RUNTIME_VERSION", "DATABRICKS_HOST")):
        return None
    try:
        dbutils = import_module("databricks.sdk.runtime").dbutils
    except Exception:
        # without credentials the import itself fails, with different errors in different versions
        return None
    return lambda scope, key: str(dbutils.secrets.get(scope=scope, key=key))


def _closing(text: str, start: int) -> int:
    """Return the index of the brace that closes the reference; braces inside it come in pairs."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return position
    return -1


def _file(path: str, *, written: str) -> str:
    target = Path(path)
    try:
        if target.is_file():
            with target.open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
            if len(content) <= MAX_SECRET_BYTES:
                # mounted secrets often end with a line break that is not part of them
                return content.decode("utf-8-sig").rstrip("\r\n")
            why = "is larger than 64 KiB"
        else:
            why = "is not there"
    except UnicodeDecodeError:
        why = "is not UTF-8 text"
    except (OSError, ValueError) as error:
        why = f"cannot be read ({type(error).__name__})"
    # the message shows the path as written: a variable in the path may hold a secret
    raise UnresolvedError(f"needs the file {written}, which {why}")
