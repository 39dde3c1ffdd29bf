"""Listeners that ask who is there: made with a folder, for tests of clients that must say it."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distributary.errors import ConfigError
from distributary.lab.services.processes import HOST, Ports

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


def place(folder: Path) -> Path:
    """Where certificates and the password are kept."""
    return folder / "security"


def ensure_security(folder: Path) -> None:
    """Make certificates and a password, unless the folder has them."""
    home = place(folder)
    if (home / "password.json").is_file():
        return
    # only tests ask for this: nobody else needs the package

    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = Authority(home)
    for name in ("server", "client"):
        authority.issue(name)
    # one file for a Java server: the key, then the certificate
    server = home / "server-both.pem"
    server.touch(0o600)
    server.write_bytes((home / "server.key").read_bytes() + (home / "server.pem").read_bytes())
    secret = home / "password.json"
    secret.touch(0o600)
    secret.write_text(json.dumps({USER: secrets.token_urlsafe(16)}), "utf-8")


def require_securable(folder: Path) -> None:
    """ConfigError for a broker that was made without users: it cannot be given any later."""
    if (folder / "kafka").exists() and not (place(folder) / "password.json").is_file():
        raise ConfigError(
            "the broker of this folder was made without security",
            where=str(folder),
            next_step="use another folder, or remove this one with distributary dev down --wipe",
        )


def password(folder: Path) -> str:
    """The password of the one user."""
    return str(json.loads((place(folder) / "password.json").read_text("utf-8"))[USER])


def security_of(folder: Path, ports: Ports) -> Security:
    """What is to be told to clients."""
    home = place(folder)
    return Security(
        sasl_plaintext=f"{HOST}:{ports.sasl_plaintext}",
        sasl_ssl=f"{HOST}:{ports.sasl_ssl}",
        ssl=f"{HOST}:{ports.ssl}",
        registry=f"https://{HOST}:{ports.https}/apis/ccompat/v7",
        username=USER,
        password=password(folder),
        authority=home / "authority.pem",
        certificate=home / "client.pem",
        key=home / "client.key",
    )


def broker_settings(folder: Path) -> list[str]:
    """The lines of the broker's settings that say who is let in, and how."""
    home, word = place(folder).relative_to(folder), password(folder)
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    lines: list[str] = []
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        lines.append(f"{prefix}.sasl.enabled.mechanisms={','.join(MECHANISMS)}")
        lines.append(f'{prefix}.plain.sasl.jaas.config={plain} user_{USER}="{word}";')
        for mechanism in MECHANISMS[1:]:
            lines.append(f"{prefix}.{mechanism.lower()}.sasl.jaas.config={scram};")
    for listener, asks in (("sasl_ssl", "none"), ("ssl", "required")):
        prefix = f"listener.name.{listener}.ssl"
        lines.append(f"{prefix}.keystore.type=PEM")
        lines.append(f"{prefix}.keystore.location={home}/server-both.pem")
        lines.append(f"{prefix}.truststore.type=PEM")
        lines.append(f"{prefix}.truststore.location={home}/authority.pem")
        lines.append(f"{prefix}.client.auth={asks}")
    return lines


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
