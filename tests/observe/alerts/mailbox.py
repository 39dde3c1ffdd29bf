"""A real mail server on this machine that keeps what it gets."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from distributary_lab.services.processes import HOST, free_port

USER, PASSWORD = "alerts", "canary-password"


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.signed_in: list[str] = []
        self.answer: Callable[[int], str] = lambda count: "250 OK"
        self.rcpt: Callable[[str], str] = lambda address: "250 OK"
        self.attempts = 0
        self.port = 0

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        answer = self.rcpt(address)
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.attempts += 1
        answer = self.answer(self.attempts)
        if answer.startswith("250"):
            mail = message_from_bytes(envelope.content, policy=policy.default)
            self.mails.append(cast(EmailMessage, mail))
            self.recipients.append(envelope.rcpt_tos)
        return answer

    def signs_in(
        self, server: Any, session: Any, envelope: Any, kind: str, data: Any
    ) -> AuthResult:
        good = isinstance(data, LoginPassword) and data.password == PASSWORD.encode()
        if good:
            self.signed_in.append(data.login.decode())
        return AuthResult(success=good, handled=False)


@contextmanager
def mail_server(
    *, tls: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None, auth: bool = False
) -> Iterator[Mailbox]:
    box = Mailbox()
    settings: dict[str, Any] = {"ssl_context": tls, "tls_context": starttls}
    if auth:
        settings |= {
            "authenticator": box.signs_in,
            "auth_required": True,
            "auth_require_tls": starttls is not None,
        }
    box.port = free_port(but=set())
    controller = Controller(box, hostname=HOST, port=box.port, **settings)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()
