"""JSON values one after the other, out of a file of any length."""

from __future__ import annotations

import codecs
import json
import re

from distributary.errors import ErrorCode
from distributary.source.files_bytes import MOST_LETTER_BYTES, Bytes, FileFaultError

CHUNK_BYTES = 4 * 1024 * 1024

_SPACE = re.compile(r"[ \t\r\n]*")
_NEAR_THE_END = 32
"""Characters: a word, a number or an escape that is cut is blamed at its beginning."""


class Values:
    """Takes values from a text that is read as it is needed."""

    def __init__(self, data: Bytes, begin: bytes) -> None:
        self._data = data
        # bytes that are no UTF-8 pass as they are: the event's decoder says what is wrong
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = self._decoder.decode(begin)
        self._at = 0
        self._ended = False
        self._parse = json.JSONDecoder().raw_decode

    def has_next(self) -> bool:
        """Whether a whole value comes next."""
        self._skip(needed=True)
        return self._next() is not None

    def take(self) -> tuple[bytes, object]:
        """The next value: its own bytes, and what they say."""
        self._skip(needed=True)
        found = self._next()
        if found is None:
            raise self._fault()
        value, end = found
        text = self._text[self._at : end].encode("utf-8", "surrogateescape")
        self._at = end
        return text, value

    def next_sign(self, *, needed: bool) -> str:
        """The next character that is not space; empty at the end.

        Where one is needed, the end may be that of a file which is still being written.
        """
        self._skip(needed=needed)
        return self._text[self._at : self._at + 1]

    def expect(self, sign: str) -> None:
        """Step over a sign that must come next."""
        if self.next_sign(needed=bool(sign))[: len(sign)] != sign:
            raise self._fault()
        self._at += len(sign)

    def rest(self) -> bytes:
        """Everything that was not taken, as far as a dead letter holds it."""
        kept = self.unread()[:MOST_LETTER_BYTES]
        return kept + self._data.read(MOST_LETTER_BYTES - len(kept))

    def unread(self) -> bytes:
        """What was read of the file and not taken."""
        begun, _ = self._decoder.getstate()
        return self._text[self._at :].encode("utf-8", "surrogateescape") + begun

    def _next(self) -> tuple[object, int] | None:
        """The value that begins here, and where it ends; None where there is none."""
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = len(self._text) - error.pos < _NEAR_THE_END or "Untermin" in error.msg
                long = len(self._text) - self._at > MOST_LETTER_BYTES
                if long or not cut or not self._more(needed=True):
                    return None
                continue
            except (ValueError, RecursionError):
                return None
            # a number at the end of what was read may go on
            if end < len(self._text) or not self._more(needed=False):
                return value, end

    def _skip(self, *, needed: bool) -> None:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._more(needed=needed):
                return

    def _more(self, *, needed: bool) -> bool:
        """Read on, as much as there is already: a long value is not parsed again too often."""
        size = max(CHUNK_BYTES, len(self._text) - self._at)
        chunk = self._data.read(size)
        if not chunk and needed and not self._ended and self._data.back(self._data.position):
            chunk = self._data.read(size)
        # what was needed and did not come is not waited for again
        self._ended = needed and not chunk
        self._text = self._text[self._at :] + self._decoder.decode(chunk, final=not chunk)
        self._at = 0
        return bool(chunk)

    def _fault(self) -> FileFaultError:
        if self._ended:
            reason = "the file ends inside of an event, or before the end of its array"
            return FileFaultError(ErrorCode.FILE_TRUNCATED, reason, self.rest())
        return FileFaultError(ErrorCode.FILE_CORRUPT, "an event is broken", self.rest())
