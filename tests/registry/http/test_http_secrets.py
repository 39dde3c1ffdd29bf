"""What must never be shown, whatever a server repeats of it; and secure connections."""

from __future__ import annotations

import base64
import contextlib
import logging
import pickle
import ssl
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from distributary.errors import ConfigError, DistributaryError, RegistryUnavailableError
from tests.registry.loopback import Asked, Says, no, registry, says, serving

PASSWORD, TOKEN, KEY_PASSWORD = "pass-canary-1", "token-canary-2", "key-canary-3"
PAIR = base64.b64encode(f"me:{PASSWORD}".encode()).decode()


def repeating(form: Callable[[str], Says]) -> Callable[[Asked], Says]:
    """A server that gives back what it was told in confidence."""

    def answer(asked: Asked) -> Says:
        return form(f"{asked.headers.get('authorization', '')} {PASSWORD} {TOKEN}")

    return answer


FORMS: list[Callable[[str], Says]] = [
    lambda told: no(401, 40101, told),
    lambda told: no(403, 40301, told),
    lambda told: no(404, 40403, told),
    lambda told: no(404, 404, told),
    lambda told: no(409, 409, told),
    lambda told: no(422, 42201, told),
    lambda told: no(429, 42901, told),
    lambda told: no(500, 50001, told),
    lambda told: says(told),
    lambda told: says({"schema": told, "schemaType": told}),
    lambda told: says({told: told}),
    lambda told: says({"is_compatible": False, "messages": [told]}),
    lambda told: Says(200, told.encode()),
    lambda told: Says(404, told.encode()),
    lambda told: Says(302, b"", {"location": f"http://other.test/{told}?{told}"}),
    lambda told: Says(503, b"", {"retry-after": told}),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize(
    "login", [{"username": "me", "password": PASSWORD}, {"token": TOKEN}], ids=["basic", "token"]
)
def test_no_secret_is_ever_shown(
    form: int,
    login: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    with serving(repeating(FORMS[form])) as server:
        reader = registry(server.url, **login)
        asks: list[Callable[[], Any]] = [
            lambda: reader.by_id(1),
            lambda: reader.latest("a"),
            lambda: reader.subjects(),
            lambda: reader.register("a", "x"),
            lambda: reader.check("a", "x"),
            lambda: reader.compatibility("a"),
        ]
        for ask in asks:
            try:
                seen.append(repr(ask()))
            except DistributaryError as error:
                seen += [str(error), repr(error), repr(error.as_dict()), repr(vars(error))]
                seen += ["".join(traceback.format_exception(error)), str(pickle.dumps(error))]
        seen += [repr(reader), repr(reader._client), repr(reader._client._transport)]
        reader.close()
    printed = capfd.readouterr()
    shown = "\n".join([*seen, caplog.text, printed.out, printed.err])
    # the other login's canary is the server's own word here: nobody told it to this client
    told = (PASSWORD, PAIR) if "password" in login else (TOKEN,)
    assert [secret for secret in told if secret in shown] == []
    assert printed.out == ""


@pytest.mark.parametrize("token", ["", " ", "two\nlines-canary", "canary-é", "canary\x00"])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry("http://127.0.0.1:1", token=token)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


class Authority:
    """Gives out certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder / name, name
        self._folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(name, self._key, ca=True)
        self.file = self._folder / "ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, password: str = "") -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(self._signed(name, key).public_bytes(Encoding.PEM))
        lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
        return pair

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool = False
    ) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = datetime.now(UTC)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False
            )
            .add_extension(
                x509.KeyUsage(True, False, False, False, False, ca, ca, False, False), True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False
            )
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@contextlib.contextmanager
def secure(authority: Authority, *, mutual: bool = False) -> Iterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = authority.issue("server")
    context.load_cert_chain(pair.certificate, pair.key)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.file)
    with serving(lambda _: says(["a"]), context) as server:
        yield server.url


def test_a_server_of_a_trusted_authority(authority: Authority) -> None:
    with secure(authority) as url, registry(url, ca_location=str(authority.file)) as reader:
        assert reader.subjects() == ("a",)


def test_a_server_that_nobody_vouches_for(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    wrong: list[dict[str, Any]] = [{}, {"ca_location": str(other.file)}]
    with secure(authority) as url:
        for trust in wrong:
            with registry(url, attempts=1, **trust) as reader:
                with pytest.raises(RegistryUnavailableError) as caught:
                    reader.subjects()
                assert "secure" in caught.value.what


def test_a_server_that_speaks_plainly_where_it_should_not() -> None:
    with serving(lambda _: says([])) as server:
        url = server.url.replace("http:", "https:")
        with registry(url, attempts=1) as reader, pytest.raises(RegistryUnavailableError):
            reader.subjects()


@pytest.mark.parametrize("password", ["", KEY_PASSWORD])
def test_both_sides_show_a_certificate(authority: Authority, password: str) -> None:
    pair = authority.issue("client", password)
    settings: dict[str, Any] = {
        "ca_location": str(authority.file),
        "certificate_location": str(pair.certificate),
        "key_location": str(pair.key),
    }
    if password:
        settings["key_password"] = password
    with secure(authority, mutual=True) as url:
        with registry(url, **settings) as reader:
            assert reader.subjects() == ("a",)
        with registry(url, attempts=1, ca_location=str(authority.file)) as reader:
            with pytest.raises(RegistryUnavailableError):
                reader.subjects()


def test_files_that_are_no_certificates(authority: Authority, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text(f"not a certificate, but {KEY_PASSWORD}")
    locked, other = authority.issue("locked", KEY_PASSWORD), authority.issue("unrelated")
    mine = {"certificate_location": str(locked.certificate), "key_location": str(locked.key)}
    cases: list[dict[str, Any]] = [
        {"ca_location": str(tmp_path / "missing.pem")},
        {"ca_location": str(nonsense)},
        {"certificate_location": str(nonsense)},
        {**mine, "key_location": str(tmp_path / "missing.key")},
        {**mine, "key_location": str(other.key)},
        {**mine, "key_password": f"wrong-{KEY_PASSWORD}"},
        mine,
    ]
    for settings in cases:
        with pytest.raises(ConfigError) as caught:
            registry("https://127.0.0.1:1", **settings)
        assert KEY_PASSWORD not in "".join(traceback.format_exception(caught.value))
