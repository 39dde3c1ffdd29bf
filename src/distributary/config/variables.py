"""`${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${databricks:SCOPE/KEY}` in texts."""

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
"""Scope and key to the secret."""


class UnresolvedError(ConfigError):
    """One reference that has no value; the message never holds one."""

    code = ErrorCode.CONFIG_MISSING_VARIABLE


@dataclass(slots=True)
class Expansion:
    """A text in which references were replaced."""

    text: str = ""
    references: list[str] = field(default_factory=list)
    """What it was made of, such as `env:NAME` or `env:NAME, not set`."""
    secrets: list[str] = field(default_factory=list)
    """Values that must not be shown wherever they end up."""
    variables: list[str] = field(default_factory=list)
    """Values of variables, which must not be shown in a free-form option."""
    unresolved: list[UnresolvedError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Variables:
    """Where references find their values."""

    environ: Mapping[str, str]
    databricks: SecretLookup | None = None
    """Databricks' own way when left out, where there is one."""

    def expand(self, text: str) -> Expansion:
        """Replace every reference once; what a variable holds is never expanded again."""
        result = Expansion()
        result.text = self._expand(text, result, depth=0)
        return result

    def _expand(self, text: str, into: Expansion, *, depth: int) -> str:
        done, position = "", 0
        while (start := text.find("${", position)) >= 0:
            if start > position and text[start - 1] == "$":
                # `$${` is how a literal `${` is written
                done, position = f"{done}{text[position : start - 1]}${{", start + 2
                continue
            done += text[position:start]
            end = _closing(text, start + 2)
            if end < 0 or depth >= _MAX_NESTING:
                why = "has variables inside variables, too deep"
                if end < 0:
                    why = "has ${ without its }; write $${ for a literal one"
                into.unresolved.append(UnresolvedError(why))
                return done
            try:
                done += self._value(text[start + 2 : end], into, depth=depth)
            except UnresolvedError as error:
                into.unresolved.append(error)
            position = end + 1
        return done + text[position:]

    def _value(self, body: str, into: Expansion, *, depth: int) -> str:
        kind, _, argument = body.partition(":")
        match kind:
            case "env":
                return self._env(argument, into, depth=depth)
            case "file":
                before = len(into.unresolved)
                path = self._expand(argument, into, depth=depth + 1)
                if len(into.unresolved) > before:
                    return ""
                secret = _file(path, written=argument)
                into.references.append(f"file:{argument}")
            case "databricks":
                secret = self._databricks(argument)
                into.references.append(f"databricks:{argument}")
            case _:
                meant = f"${{env:{body}}}" if _NAME.fullmatch(body) else ""
                raise UnresolvedError(
                    "has ${...} that is neither env: nor file:; write $${ for a literal one",
                    suggestion=meant,
                )
        into.secrets.append(secret)
        return secret

    def _env(self, argument: str, into: Expansion, *, depth: int) -> str:
        name, found, default = argument.partition(":-")
        if not _NAME.fullmatch(name):
            raise UnresolvedError("has ${env:...} without a variable's name")
        value = self.environ.get(name)
        # as in a shell: `:-` also stands in for a variable that is empty
        if value or (value is not None and not found):
            into.references.append(f"env:{name}")
            into.variables.append(value)
            return value
        if not found:
            raise UnresolvedError(
                f"needs the variable {name}, which is not set",
                # an environment is full of names that look alike and mean other things
                suggestion=nearest(name, self.environ, at_least=0.85),
            )
        into.references.append(f"env:{name}, not set")
        return self._expand(default, into, depth=depth + 1)

    def _databricks(self, argument: str) -> str:
        scope, found, key = argument.partition("/")
        if not (scope and found and key):
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
            # whatever the client raises may quote its request: only its kind is told
            raise UnresolvedError(
                f"needs the Databricks secret {scope}/{key}, which cannot be read "
                f"({type(error).__name__}): check the scope, the key and your rights to it"
            ) from None


def databricks_secrets(environ: Mapping[str, str]) -> SecretLookup | None:
    """Databricks' own way to secrets, where it is installed and there is a workspace to ask."""
    if not any(name in environ for name in ("DATABRICKS_RUNTIME_VERSION", "DATABRICKS_HOST")):
        return None
    try:
        dbutils = import_module("databricks.sdk.runtime").dbutils
    except Exception:
        # without credentials the import itself fails, in ways that depend on the version
        return None
    return lambda scope, key: str(dbutils.secrets.get(scope=scope, key=key))


def _closing(text: str, start: int) -> int:
    """The brace that closes the reference: braces inside it, as in a template, come in pairs."""
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
                # mounted secrets commonly end with a line break that is not part of them
                return content.decode("utf-8-sig").rstrip("\r\n")
            why = "is larger than 64 KiB"
        else:
            why = "is not there"
    except UnicodeDecodeError:
        why = "is not UTF-8 text"
    except (OSError, ValueError) as error:
        why = f"cannot be read ({type(error).__name__})"
    # told as it was written: what a variable put into the path may be a secret
    raise UnresolvedError(f"needs the file {written}, which {why}")
