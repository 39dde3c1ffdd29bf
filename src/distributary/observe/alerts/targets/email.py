"""Mail by SMTP. What is said about one occasion of an alert is one thread."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime

from distributary.config.alert_targets import EmailTarget
from distributary.observe.alerts.notice import Notice, State
from distributary.observe.alerts.targets.base import DELIVERED, Outcome, within

_LONGEST_SUBJECT = 200
_POSTPONED = range(400, 500)


class Email:
    """Sends notices to a few mailboxes."""

    one_by_one = False

    def __init__(self, config: EmailTarget, *, name: str) -> None:
        self.name = name
        self._config = config

    def send(self, notice: Notice) -> Outcome:
        """One attempt, with a connection of its own."""
        seconds = self._config.timeout.total_seconds()
        mail = mail_of(notice, sender=self._config.from_, recipients=self._config.to)
        return within(seconds, lambda: self._exchange(mail, seconds))

    def close(self) -> None:
        """Nothing is kept open."""

    def _exchange(self, mail: EmailMessage, seconds: float) -> Outcome:
        try:
            with self._connected(seconds) as server:
                if self._config.username is not None and self._config.password is not None:
                    secret = self._config.password.get_secret_value()
                    server.login(self._config.username, secret)
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            code = error.smtp_code
            return Outcome(False, f"answered {code}", again=code in _POSTPONED or code < 0)
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            later = all(code in _POSTPONED for code in codes)
            return Outcome(False, f"no recipient is taken ({_words(codes)})", again=later)
        except smtplib.SMTPNotSupportedError:
            return Outcome(False, "the server does not offer what tls and username ask for")
        except ssl.SSLError:
            why = "no secure connection: check the certificate and ca_location"
            return Outcome(False, why, again=True)
        except (OSError, smtplib.SMTPException) as error:
            return Outcome(False, f"no connection ({type(error).__name__})", again=True)
        # some have it: sent again, they would have it twice
        note = f"{len(refused)} of {len(self._config.to)} recipients were refused"
        return Outcome(True, note) if refused else DELIVERED

    def _connected(self, seconds: float) -> smtplib.SMTP:
        host, port = self._config.host, self._config.port
        if self._config.tls == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=seconds, context=self._trusted())
        server = smtplib.SMTP(host, port, timeout=seconds)
        if self._config.tls == "starttls":
            try:
                server.starttls(context=self._trusted())
            except BaseException:
                server.close()
                raise
        return server

    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._config.ca_location)


def mail_of(notice: Notice, *, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """The mail: text only."""
    mail = EmailMessage(policy=SMTP_POLICY)
    mail["Subject"] = _header(notice.headline)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = format_datetime(notice.at)
    _put_into_thread(mail, notice, domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Distributary-Key"] = _header(notice.key)
    mail.set_content(body_of(notice))
    return mail


def _put_into_thread(mail: EmailMessage, notice: Notice, *, domain: str) -> None:
    """The end of an alert answers its beginning; the same mail sent again has the same id."""
    beginning = f"<{notice.thread}@{domain}>"
    if notice.state is not State.RESOLVED:
        mail["Message-ID"] = beginning
        return
    mail["Message-ID"] = f"<{notice.occasion}@{domain}>"
    mail["In-Reply-To"] = mail["References"] = beginning


def body_of(notice: Notice) -> str:
    """One line for each part."""
    over = notice.state is State.RESOLVED
    parts = {
        "where": notice.where,
        "seen": notice.evidence,
        "next": "" if over else notice.next_step,
        "code": notice.code,
        "since": f"{notice.since:%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{notice.at:%Y-%m-%dT%H:%M:%SZ}" if over else "",
        "page": notice.link,
    }
    lines = [f"{name + ':':<7}{_sendable(text)}" for name, text in parts.items() if text]
    return "\n".join([_sendable(notice.headline), "", *lines]) + "\n"


def _header(text: str) -> str:
    short = text if len(text) <= _LONGEST_SUBJECT else f"{text[: _LONGEST_SUBJECT - 3]}..."
    one_line = "".join(c if c.isprintable() else " " for c in short)
    # the library decodes what looks like an encoded word, line breaks in it included
    return _sendable(one_line).replace("=?", "= ?")


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _words(codes: list[int]) -> str:
    return ", ".join(map(str, codes))
