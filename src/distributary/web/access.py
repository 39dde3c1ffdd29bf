"""Who may look: a token, sessions that end, links that work once, and patience that ends too."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

SESSION_SECONDS = 12 * 3600.0
LINK_SECONDS = 600.0
WRONG_ALLOWED = 10
"""Wrong tokens from one address, and ten times as many from all of them, in a minute."""
_MINUTE = 60.0
_MOST_KEPT = 10_000
_EVERYBODY = ""

Clock = Callable[[], float]


class Access:
    """Knows hashes only: neither the token nor a session's id can be read out of it."""

    def __init__(self, token: str | None, *, clock: Clock = time.monotonic) -> None:
        self._token = None if token is None else _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[bytes, float] = OrderedDict()
        self._links: OrderedDict[bytes, float] = OrderedDict()
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    @property
    def required(self) -> bool:
        """Whether a token is asked for at all."""
        return self._token is not None

    def blocked(self, client: str) -> bool:
        """Whether an address has been wrong too often lately."""
        with self._lock:
            return self._lately(client) >= WRONG_ALLOWED or (
                self._lately(_EVERYBODY) >= 10 * WRONG_ALLOWED
            )

    def accepts(self, token: str, *, client: str) -> bool:
        """Whether this is the token; a wrong one is remembered against the address."""
        right = self._token is not None and hmac.compare_digest(_digest(token), self._token)
        if not right:
            self._note_wrong(client)
        return right

    def redeem(self, link: str, *, client: str) -> bool:
        """Whether this is a link that nobody has used; nobody can use it again."""
        with self._lock:
            end = self._links.pop(_digest(link), None)
        right = end is not None and self._clock() < end
        if not right:
            self._note_wrong(client)
        return right

    def new_link(self) -> str:
        """What can be exchanged for a session, once and soon."""
        return self._issue(self._links, LINK_SECONDS)

    def new_session(self) -> str:
        """The id of a session, for a cookie."""
        return self._issue(self._sessions, SESSION_SECONDS)

    def knows(self, session: str | None) -> bool:
        """Whether a session is open."""
        if not session:
            return False
        with self._lock:
            end = self._sessions.get(_digest(session))
            return end is not None and self._clock() < end

    def end(self, session: str | None) -> None:
        """Closes a session."""
        with self._lock:
            self._sessions.pop(_digest(session or ""), None)

    def csrf(self, session: str | None) -> str:
        """What only a page of ours can know; another for every session."""
        text = (session or "").encode()
        return hmac.new(self._key, b"csrf:" + text, hashlib.sha256).hexdigest()

    def proves(self, given: str | None, session: str | None) -> bool:
        """Whether a request comes from a page of ours."""
        return hmac.compare_digest((given or "").encode(), self.csrf(session).encode())

    def _issue(self, kept: OrderedDict[bytes, float], seconds: float) -> str:
        made = secrets.token_urlsafe(32)
        with self._lock:
            kept[_digest(made)] = self._clock() + seconds
            while len(kept) > _MOST_KEPT:
                kept.popitem(last=False)
        return made

    def _note_wrong(self, client: str) -> None:
        with self._lock:
            for who in (client, _EVERYBODY):
                self._wrong.setdefault(who, deque(maxlen=10 * WRONG_ALLOWED)).append(self._clock())
                self._wrong.move_to_end(who)
            while len(self._wrong) > _MOST_KEPT:
                self._wrong.popitem(last=False)

    def _lately(self, who: str) -> int:
        times = self._wrong.get(who)
        if times is None:
            return 0
        while times and self._clock() - times[0] > _MINUTE:
            times.popleft()
        return len(times)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
