"""The address of a source database: `postgresql://user:password@host:port/database`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import checked_line
from distributary.errors import ConfigError, ErrorCode

PASSWORD_VARIABLES: Mapping[str, str] = {
    "postgresql": "PGPASSWORD",
    "mysql": "MYSQL_PWD",
    "mariadb": "MYSQL_PWD",
}
"""The variable in which a database's own tools look for a password, by the scheme of the
address."""
_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database, with the user and the password."""

    scheme: str
    host: str
    port: int | None
    user: str
    password: str = field(repr=False)
    database: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> str:
        """Return the address without password and options."""
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host}{port}/{self.database}"


def with_variables(text: str) -> str:
    """Replace references such as `${NAME}` by variables of the environment. Raises ConfigError."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise ConfigError(
                f"the variable {name} is not set",
                code=ErrorCode.CONFIG_MISSING_VARIABLE,
                where="--source",
                next_step=f"set {name}",
            )
        return os.environ[name]

    return _REFERENCE.sub(value, text)


def parse_address(text: str, *, where: str = "--source") -> Address:
    """Read an address. Raises ConfigError, which does not show it."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _unfit("it is no address", where) from None
    if parts.scheme not in PASSWORD_VARIABLES:
        raise _unfit(f"its scheme is not one of {', '.join(PASSWORD_VARIABLES)}", where)
    if not parts.hostname or not parts.path.strip("/"):
        raise _unfit("it names no host or no database", where)
    variable = PASSWORD_VARIABLES[parts.scheme]
    return Address(
        parts.scheme,
        parts.hostname,
        port,
        unquote(parts.username or ""),
        unquote(parts.password or os.environ.get(variable, "")),
        unquote(parts.path.strip("/")),
        dict(parse_qsl(parts.query)),
    )


def _unfit(evidence: str, where: str) -> ConfigError:
    return ConfigError(
        "the address of the source cannot be used",
        where=where,
        evidence=evidence,
        next_step="write postgresql://USER:${PASSWORD}@HOST:PORT/DATABASE, or mysql:// or "
        "mariadb://, and set the variable PASSWORD",
    )


def _with_slots(value: SecretStr) -> SecretStr:
    text = checked_line(value.get_secret_value())
    if "${" in text:
        # a reference that this command does not need
        return SecretStr(text)
    try:
        address = parse_address(text)
    except ConfigError as error:
        words = "must be an address such as postgresql://user:password@host/database: {evidence}"
        raise PydanticCustomError("database", words, {"evidence": error.evidence}) from None
    if address.scheme != "postgresql":
        words = "must be of PostgreSQL: readers of a binary log do not hold it back"
        raise PydanticCustomError("database", words)
    return SecretStr(text)


SlotsUrl = Annotated[SecretStr, AfterValidator(_with_slots)]
"""The address of a database that has replication slots."""
