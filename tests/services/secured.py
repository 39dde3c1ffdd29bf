"""A broker and a registry that ask who is there, for tests of clients that must say it."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distributary.errors import ConfigError
from distributary.spark.jars import Progress
from distributary_lab.services.processes import HOST, Running
from distributary_lab.services.servers import JavaService, KafkaService, RegistryService
from distributary_lab.services.services import Services

HOME = Path("security")
"""Where certificates and the password are, in the folder of the services."""
USER = "alice"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""What the listeners with a password take; the user and the password are the same for all."""


@dataclass(frozen=True, slots=True)
class Security:
    """Where the listeners are, and what a client needs to be let in."""

    sasl_plaintext: str
    """A password, nothing encrypted."""
    sasl_ssl: str
    """A password, encrypted."""
    ssl: str
    """Encrypted, and the client must show a certificate."""
    registry: str
    """The registry with `https`."""
    username: str
    password: str = field(repr=False)
    authority: Path
    """The certificate of the authority that signed all others."""
    certificate: Path
    """The certificate of a client."""
    key: Path
    """The key of that client, not encrypted."""


class SecuredBroker(KafkaService):
    """Kafka, also with passwords and with certificates."""

    other_ports = ("controller", "sasl_plaintext", "sasl_ssl", "ssl")
    listeners: ClassVar = {
        "PLAINTEXT": "kafka",
        "SASL_PLAINTEXT": "sasl_plaintext",
        "SASL_SSL": "sasl_ssl",
        "SSL": "ssl",
    }

    def settings(self) -> dict[str, str]:
        """Who is let in, and how."""
        settings, word = super().settings(), password(self.folder)
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{listener}"
            settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            settings[f"{prefix}.plain.sasl.jaas.config"] = f'{plain} user_{USER}="{word}";'
            for mechanism in MECHANISMS[1:]:
                settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = scram
        for listener, asks in (("sasl_ssl", "none"), ("ssl", "required")):
            prefix = f"listener.name.{listener}.ssl"
            settings |= {
                f"{prefix}.keystore.type": "PEM",
                f"{prefix}.keystore.location": str(HOME / "server-both.pem"),
                f"{prefix}.truststore.type": "PEM",
                f"{prefix}.truststore.location": str(HOME / "authority.pem"),
                f"{prefix}.client.auth": asks,
            }
        return settings

    def users(self) -> list[str]:
        """The one user, for every mechanism that keeps users in the log."""
        user = f"[name={USER},password={password(self.folder)}]"
        return [word for each in MECHANISMS[1:] for word in ("--add-scram", f"{each}={user}")]


class SecuredRegistry(RegistryService):
    """Apicurio, also encrypted."""

    other_ports = ("https",)

    def settings(self) -> dict[str, str]:
        """Those of the encrypted port too."""
        return super().settings() | {
            "quarkus.http.ssl-port": str(self.ports["https"]),
            "quarkus.http.insecure-requests": "enabled",
            "quarkus.http.ssl.certificate.files": str(HOME / "server.pem"),
            "quarkus.http.ssl.certificate.key-files": str(HOME / "server.key"),
        }


class SecuredServices(Services):
    """The two, with listeners for passwords and certificates beside the usual ones."""

    kinds = (SecuredBroker, SecuredRegistry)

    @property
    def security(self) -> Security:
        """What a client of the secured listeners needs."""
        home, ports = self.folder / HOME, self._ports
        return Security(
            sasl_plaintext=f"{HOST}:{ports['sasl_plaintext']}",
            sasl_ssl=f"{HOST}:{ports['sasl_ssl']}",
            ssl=f"{HOST}:{ports['ssl']}",
            registry=f"https://{HOST}:{ports['https']}/apis/ccompat/v7",
            username=USER,
            password=password(self.folder),
            authority=home / "authority.pem",
            certificate=home / "client.pem",
            key=home / "client.key",
        )

    def _launch(
        self, missing: Sequence[JavaService], launched: dict[str, Running], say: Progress
    ) -> None:
        ensure_security(self.folder)
        super()._launch(missing, launched, say)


def ensure_security(folder: Path) -> None:
    """Make certificates and a password, unless the folder has them.

    ConfigError for a broker that was made without users: it cannot be given any later.
    """
    home = folder / HOME
    if (home / "password.json").is_file():
        return
    if (folder / "kafka").exists():
        raise ConfigError(
            "the broker of this folder was made without security",
            where=str(folder),
            next_step="use another folder, or remove this one with distributary dev down --wipe",
        )
    home.mkdir(mode=0o700)
    authority = Authority(home)
    for name in ("server", "client"):
        authority.issue(name)
    # one file for a Java server: the key, then the certificate
    both = (home / "server.key").read_bytes() + (home / "server.pem").read_bytes()
    _write(home / "server-both.pem", both)
    _write(home / "password.json", json.dumps({USER: secrets.token_urlsafe(16)}).encode())


def password(folder: Path) -> str:
    """The password of the one user."""
    return str(json.loads((folder / HOME / "password.json").read_text("utf-8"))[USER])


# Certificates that are good for a few days on this machine: an authority, a server, a client.

_DAYS = 30
_NAMES: Sequence[x509.GeneralName] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and is forgotten: its key is never written down."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("distributary dev authority")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = _write(folder / "authority.pem", _pem(made))

    def issue(self, name: str) -> Pair:
        """A certificate for a server on this machine, or for a client of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            self._builder(_named(name), key.public_key())
            .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(
            _write(self._folder / f"{name}.pem", _pem(made)),
            _write(self._folder / f"{name}.key", private),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # clocks of containers differ a little
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=_DAYS))
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> Path:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return path
