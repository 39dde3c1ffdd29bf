"""How to reach a broker that asks who you are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.text import Text
from distributary.errors import ConfigError, ErrorCode

StoreType = Literal["JKS", "PKCS12", "PEM"]

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class KafkaSecurity(Section):
    """Protocol, credentials and certificates of a Kafka connection."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How the connection is secured."""
    mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]
        | None
    ) = None
    """How the client proves who it is, for the SASL protocols."""
    username: Text | None = None
    """User or API key, for PLAIN and SCRAM."""
    password: SecretStr | None = None
    """Password or API secret, for PLAIN and SCRAM."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key (PKCS#8)."""
    key_password: SecretStr | None = None
    """Password of the private key, in a PEM file or in the key store."""
    truststore_location: Text | None = None
    """Java trust store; use it or `ca_location`."""
    truststore_password: SecretStr | None = None
    """Password of the trust store."""
    truststore_type: StoreType = "JKS"
    """Kind of the trust store."""
    keystore_location: Text | None = None
    """Java key store; use it or `certificate_location` with `key_location`."""
    keystore_password: SecretStr | None = None
    """Password of the key store."""
    keystore_type: StoreType = "JKS"
    """Kind of the key store."""

    def conflicts(self) -> Iterator[Conflict]:
        """Credentials must fit the protocol and come in pairs."""
        sasl = self.protocol.startswith("SASL_")
        if sasl and self.mechanism is None:
            yield ("protocol",), "needs mechanism, such as PLAIN"
        if self.mechanism is not None and not sasl:
            yield ("mechanism",), "needs protocol SASL_SSL or SASL_PLAINTEXT"
        if self.mechanism in _LOGIN_MODULES and not (self.username and self.password):
            yield ("mechanism",), "needs username and password"
        if bool(self.certificate_location) != bool(self.key_location):
            yield ("certificate_location",), "goes together with key_location"
        if self.ca_location and self.truststore_location:
            yield ("truststore_location",), "cannot stand beside ca_location"
        if self.certificate_location and self.keystore_location:
            yield ("keystore_location",), "cannot stand beside certificate_location"

    def jvm_options(self) -> dict[str, str]:
        """Properties of the Java client, for Spark; holds secrets."""
        options: dict[str, str | None] = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": self._jaas(),
            "ssl.key.password": _reveal(self.key_password),
        }
        if self.ca_location:
            options |= {"ssl.truststore.location": self.ca_location, "ssl.truststore.type": "PEM"}
        if self.truststore_location:
            options |= {
                "ssl.truststore.location": self.truststore_location,
                "ssl.truststore.type": self.truststore_type,
                "ssl.truststore.password": _reveal(self.truststore_password),
            }
        if self.certificate_location and self.key_location:
            # the Java client takes two PEM files only by content
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _content(self.certificate_location),
                "ssl.keystore.key": _content(self.key_location),
            }
        if self.keystore_location:
            options |= {
                "ssl.keystore.location": self.keystore_location,
                "ssl.keystore.type": self.keystore_type,
                "ssl.keystore.password": _reveal(self.keystore_password),
            }
        return {name: value for name, value in options.items() if value is not None}

    def client_options(self) -> dict[str, str]:
        """Properties of librdkafka, for admin clients and producers; holds secrets."""
        options = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username if self.mechanism in _LOGIN_MODULES else None,
            "sasl.password": _reveal(self.password) if self.mechanism in _LOGIN_MODULES else None,
            "ssl.ca.location": self.ca_location,
            "ssl.certificate.location": self.certificate_location,
            "ssl.key.location": self.key_location,
            "ssl.key.password": _reveal(self.key_password),
        }
        if self.truststore_type == "PEM" and self.truststore_location:
            options["ssl.ca.location"] = self.truststore_location
        if self.keystore_type == "PKCS12" and self.keystore_location:
            options["ssl.keystore.location"] = self.keystore_location
            options["ssl.keystore.password"] = _reveal(self.keystore_password)
        if self.keystore_type == "PEM" and self.keystore_location:
            options["ssl.certificate.location"] = self.keystore_location
            options["ssl.key.location"] = self.keystore_location
        return {name: value for name, value in options.items() if value is not None}

    def _jaas(self) -> str | None:
        module = _LOGIN_MODULES.get(self.mechanism or "")
        if module is None:
            return None
        user, password = _quoted(self.username or ""), _quoted(_reveal(self.password) or "")
        return f"{module} required username={user} password={password};"


def _reveal(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "a certificate or key file cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=path,
            evidence=type(error).__name__,
            next_step="check source.security.certificate_location and key_location",
        ) from None
