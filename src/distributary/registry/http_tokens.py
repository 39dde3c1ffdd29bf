"""Tokens that end by themselves: asked for in time, kept until shortly before, shared by threads.

a token                                                  kept
an error in OAuth's own words, 401, 403                  RegistryError, REGISTRY_AUTH
silence, 408, 429, 5xx, temporarily_unavailable          told as silence, which is asked again
anything else with a status of 200                       the same, as garbage
3xx, or 4xx in any other form: nobody gives tokens there ConfigError, unless there were some
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Annotated
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from distributary.config.oauth import OAuth
from distributary.config.registry import Registry
from distributary.errors import ErrorCode, RegistryError
from distributary.registry.http_access import Secrets, basic, escaped, secret_of, token_client
from distributary.registry.http_transport import Answer, Peer, Silence, Transport

_PEER = Peer("token endpoint", "registry.oauth.token_url")
_FORM = "application/x-www-form-urlencoded"
_ANY = "surrogatepass"
_MOST_BYTES = 1024 * 1024
_LONGEST_MARGIN_SECONDS = 60.0
_MARGIN = 0.2
_FOR_A_MOMENT = ("temporarily_unavailable", "server_error", "slow_down")
_NEXT_STEPS = {
    "invalid_scope": "check registry.oauth.scope",
    "invalid_target": "check registry.oauth.parameters",
    "invalid_request": "check registry.oauth.parameters and credentials",
    "unsupported_grant_type": "let the provider allow client credentials to this client",
    "unauthorized_client": "let the provider allow client credentials to this client",
}


class _Token(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    access_token: Annotated[str, Field(strict=True, min_length=1, pattern=r"^[!-~]+$")]
    kind: Annotated[str, Field(strict=True, pattern=r"^(?i:bearer)$", alias="token_type")] = (
        "Bearer"
    )
    # some providers write the number as a text
    expires_in: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Refused(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    error: Annotated[str, Field(min_length=1)]
    error_description: str | None = None


_TOKEN, _REFUSED = TypeAdapter(_Token), TypeAdapter(_Refused)


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str = field(repr=False)
    renew_at: float
    """When to ask for the next one."""
    ends_at: float


class Tokens:
    """The token of one client; safe to use from several threads."""

    def __init__(
        self,
        config: Registry,
        oauth: OAuth,
        *,
        context: ssl.SSLContext,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = Transport(
            token_client(config, oauth, context),
            seconds=config.timeout.total_seconds(),
            secrets=secrets,
            peer=_PEER,
            most_bytes=_MOST_BYTES,
        )
        self._oauth = oauth
        self._secrets = secrets
        self._clock = clock
        self._lock = Lock()
        self._kept: _Kept | None = None

    @property
    def address(self) -> str:
        """Where tokens come from, fit to be shown."""
        return self._transport.addresses[0].partition("?")[0]

    def token(self, *, instead_of: str | None = None) -> str | Silence:
        """A token that is good now, and another one than what somebody did not accept.

        One thread asks, the others wait for its answer.

        Raises:
            RegistryError: The provider does not know us, or gives no such token.
        """
        with self._lock:
            kept, now = self._kept, self._clock()
            if kept is not None and kept.text != instead_of and now < kept.renew_at:
                return kept.text
            found = self._asked()
            if isinstance(found, _Token):
                self._kept = self._keep(found, now)
                return found.access_token
            # before its end the old one is as good as a new one
            if kept is not None and kept.text != instead_of and now < kept.ends_at:
                return kept.text
            return replace(found, where=self.address)

    def close(self) -> None:
        """Let go of all connections."""
        self._transport.close()

    def _asked(self) -> _Token | Silence:
        oauth = self._oauth
        form = {"grant_type": "client_credentials"}
        form |= {"scope": oauth.scope} if oauth.scope is not None else {}
        form |= {name: value.get_secret_value() for name, value in oauth.parameters.items()}
        headers = {"Content-Type": _FORM}
        if oauth.credentials == "body":
            form |= {"client_id": oauth.client_id, "client_secret": secret_of(oauth)}
        else:
            headers["Authorization"] = f"Basic {basic(*escaped(oauth))}"
        address, body = self._transport.addresses[0], urlencode(form, errors=_ANY).encode()
        answer = self._transport.ask(address, "POST", "", query={}, body=body, headers=headers)
        return answer if isinstance(answer, Silence) else self._meaning(answer)

    def _keep(self, token: _Token, now: float) -> _Kept:
        self._secrets.learn(token.access_token)
        # without an end it is good until the registry says otherwise
        seconds = float("inf") if token.expires_in is None else token.expires_in
        margin = min(_LONGEST_MARGIN_SECONDS, seconds * _MARGIN)
        return _Kept(token.access_token, renew_at=now + seconds - margin, ends_at=now + seconds)

    def _meaning(self, answer: Answer) -> _Token | Silence:
        if 200 <= answer.status < 300:
            try:
                return _TOKEN.validate_json(answer.body)
            except ValidationError:
                return self._garbage(answer)
        refused = _refusal(answer)
        said = f"status {answer.status}"
        if refused is not None:
            words = (refused.error, refused.error_description)
            said += f": {self._secrets.shown(', '.join(filter(None, words)))}"
        busy = answer.status in (408, 429) or answer.status >= 500
        if busy or (refused is not None and refused.error in _FOR_A_MOMENT):
            return Silence(
                "the token endpoint fails" if answer.status != 429 else "it is asked too often",
                said,
                "bring the token endpoint back; nothing is lost meanwhile",
                retry_after=answer.retry_after,
            )
        if refused is not None or answer.status in (401, 403):
            raise self._denied(said, refused)
        return self._stranger(said)

    def _garbage(self, answer: Answer) -> Silence:
        return Silence(
            "the answer is not that of a token endpoint",
            f"status {answer.status}, {len(answer.body)} bytes",
            "check registry.oauth.token_url, and what stands between here and it",
            code=ErrorCode.REGISTRY_GARBAGE,
        )

    def _stranger(self, said: str) -> Silence:
        known = self._kept is not None
        return Silence(
            "nobody gives tokens at this address",
            said,
            "check registry.oauth.token_url: it ends in /token at most providers",
            code=ErrorCode.REGISTRY_GARBAGE if known else ErrorCode.CONFIG_INVALID,
            again=known,
        )

    def _denied(self, said: str, refused: _Refused | None) -> RegistryError:
        step = "check registry.oauth.client_id and client_secret"
        return RegistryError(
            "the token endpoint gives us no token",
            code=ErrorCode.REGISTRY_AUTH,
            where=self.address,
            evidence=said,
            next_step=_NEXT_STEPS.get(refused.error, step) if refused else step,
        )


def _refusal(answer: Answer) -> _Refused | None:
    try:
        return _REFUSED.validate_json(answer.body)
    except ValidationError:
        return None
