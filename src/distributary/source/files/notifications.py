"""New files of a bucket by the messages of a topic, in place of listing the whole bucket.

A message only says where to look: the folder of its object is listed, and what the listing shows is
compared with the list of known files, as after every listing. So it does no harm that a message
comes twice, late, or for an object that is gone, and no offset of the topic is in the checkpoint.
The whole bucket is listed at the start of a run, at intervals, and whenever the messages do not
tell everything: some were lost, one names no object, or the topic does not answer.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote_plus, urlsplit

import orjson

from distributary.errors import SourceError
from distributary.model.record import Partition

_log = logging.getLogger(__name__)

_MOST_FOLDERS = 1_000
"""The number of folders beyond which one listing of everything takes fewer requests."""
_SILENT_SECONDS = 60.0
"""The time for which a topic that did not answer is not asked again."""
_PLAIN = re.compile(r"(?!\.{1,2}$)[\w=@+,:; .-]+", re.ASCII)
"""The names of folders that every store spells as the message does."""
_AZURE = re.compile(r"/blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)

Offsets = Mapping[Partition, int]
Header = Mapping[str, Any]
QueueMessage = tuple[bytes | None, Iterable[Header] | None]
"""The value and the headers of a message."""


class BucketObject(NamedTuple):
    """An object that a message names."""

    bucket: str
    key: str


class QueueEnd(NamedTuple):
    """The end of a topic, and the id that distinguishes it from others of its name."""

    topic_id: str
    offsets: Offsets


class NotificationQueue(Protocol):
    """A topic of notifications."""

    def end(self) -> QueueEnd:
        """Return the current end. Raises SourceError."""
        ...

    def messages(self, begin: Offsets, end: Offsets) -> Iterator[QueueMessage]:
        """Yield the messages between two ends. Raises SourceError if some are deleted."""
        ...


class Notifications:
    """The folders of a bucket in which files were announced since the last listing."""

    def __init__(
        self,
        queue: NotificationQueue,
        root: str,
        *,
        list_every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow a queue for the files below `root`; list everything every so many seconds."""
        parts = urlsplit(root)
        self._bucket, self._prefix = parts.netloc.partition("@")[0], parts.path.strip("/")
        self._queue, self._list_every, self._clock = queue, list_every, clock
        self._end: QueueEnd | None = None
        """The end of the messages whose files are in the list; None if they are unknown."""
        self._next_end: QueueEnd | None = None
        self._listed_at: float | None = None
        """The time of the last listing of everything; None without one."""
        self._listing_at: float | None = None
        self._silent_until = 0.0

    def folders(self) -> set[str] | None:
        """Return the folders with announced files; None if everything must be listed."""
        now = self._clock()
        folders: set[str] | None = None
        # The end is read before any listing: what comes meanwhile is announced behind it.
        self._next_end = self._asked(now)
        if self._next_end is not None and self._end is not None and not self._is_due(now):
            try:
                folders = self._announced(self._end, self._next_end)
            except SourceError as error:
                _log.warning("messages about new files were lost, so all are listed: %s", error)
        self._listing_at = now if folders is None else None
        return folders

    def confirm(self) -> None:
        """Note that the files of the last call are in the list."""
        self._end = self._next_end
        if self._listing_at is not None:
            self._listed_at = self._listing_at

    def _is_due(self, now: float) -> bool:
        return self._listed_at is None or now - self._listed_at >= self._list_every

    def _asked(self, now: float) -> QueueEnd | None:
        """Return the end of the queue; None if it does not answer, or did not a moment ago."""
        if now < self._silent_until:
            return None
        try:
            return self._queue.end()
        except SourceError as error:
            self._silent_until = now + _SILENT_SECONDS
            _log.warning("no messages about new files, so all are listed: %s", error)
            return None

    def _announced(self, begin: QueueEnd, end: QueueEnd) -> set[str] | None:
        """Read the messages between two ends; return None if they do not name all folders."""
        same = begin.topic_id == end.topic_id and begin.offsets.keys() == end.offsets.keys()
        if not same or any(end.offsets[one] < at for one, at in begin.offsets.items()):
            return None
        folders: set[str] = set()
        for value, headers in self._queue.messages(begin.offsets, end.offsets):
            objects = objects_in(value, headers or ())
            if objects is None:
                return None
            for path in filter(None, map(self._path, objects)):
                *parents, _ = path.split("/")
                if not all(map(_PLAIN.fullmatch, parents)):
                    return None
                folders.add("/".join(parents))
            if len(folders) > _MOST_FOLDERS:
                return None
        return folders

    def _path(self, named: BucketObject) -> str | None:
        """Return the path of an object below the root; None if it is elsewhere."""
        if named.bucket != self._bucket:
            return None
        beginning = f"{self._prefix}/" if self._prefix else ""
        inside = named.key.startswith(beginning)
        return named.key.removeprefix(beginning) if inside else None


# What the services of object stores send.


def objects_in(value: bytes | None, headers: Iterable[Header]) -> list[BucketObject] | None:
    """Return the objects that a message names; None if it is of no known form."""
    attributes = {header["key"]: header["value"] for header in headers}
    bucket, name = attributes.get("bucketId"), attributes.get("objectId")
    if bucket and name:
        # attributes of a message of Pub/Sub, whose payload may be empty
        return [BucketObject(_text(bucket), _text(name))]
    try:
        return _named_by(orjson.loads(value or b""))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _named_by(document: Any) -> list[BucketObject] | None:
    match document:
        case {"Records": [*records]}:
            # S3, and stores like it; keys are encoded as in a form
            objects = [record["s3"] for record in records]
            return [
                BucketObject(s3["bucket"]["name"], unquote_plus(s3["object"]["key"]))
                for s3 in objects
            ]
        case {"Type": "Notification", "Message": str(message)}:
            # the same, forwarded by SNS
            return _named_by(orjson.loads(message))
        case {"kind": "storage#object", "bucket": str(bucket), "name": str(name)}:
            return [BucketObject(bucket, name)]
        case {"message": {"attributes": {"bucketId": str(bucket), "objectId": str(name)}}}:
            # a message of Pub/Sub, whole
            return [BucketObject(bucket, name)]
        case {"subject": str(subject)} if place := _AZURE.fullmatch(subject):
            return [BucketObject(place[1], place[2])]
        case [*events] if events and all(isinstance(event, dict) for event in events):
            # Event Grid sends several at once
            found = [_named_by(event) for event in events]
            return None if None in found else [one for some in found for one in some or ()]
        case _:
            return None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
