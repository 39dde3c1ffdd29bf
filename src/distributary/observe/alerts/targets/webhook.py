"""The generic webhook: the whole notice as JSON, signed where a secret is given."""

from __future__ import annotations

import hashlib
import hmac

from distributary.config.alert_targets import WebhookTarget
from distributary.observe.alerts.notice import Notice
from distributary.observe.alerts.targets.base import Outcome
from distributary.observe.alerts.targets.post import Poster, as_json

DOCUMENT_VERSION = 1
SIGNATURE = "X-Distributary-Signature"


class Webhook:
    """Posts notices to an address."""

    one_by_one = False

    def __init__(self, config: WebhookTarget, *, name: str) -> None:
        self.name = name
        self._config = config
        seconds = config.timeout.total_seconds()
        self._poster = Poster(seconds=seconds, ca_location=config.ca_location)

    def send(self, notice: Notice) -> Outcome:
        """One attempt."""
        body = as_json({"version": DOCUMENT_VERSION, "key": notice.key} | notice.as_dict())
        headers = {"Idempotency-Key": notice.occasion}
        if self._config.secret is not None:
            key = self._config.secret.get_secret_value().encode()
            headers[SIGNATURE] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
        if self._config.token is not None:
            headers["Authorization"] = f"Bearer {self._config.token.get_secret_value()}"
        return self._poster.post(self._config.url.get_secret_value(), body, headers)

    def close(self) -> None:
        """Let go of connections."""
        self._poster.close()
