"""New files by messages: what is listed when, and that no file is missed or found twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from distributary.config.sources.files import FileNotifications
from distributary.errors import SourceError, SourceUnavailableError
from distributary.source.files.file_bytes import BucketFiles
from distributary.source.files.file_list import FoundFile
from distributary.source.files.kafka_queue import KafkaQueue
from distributary.source.files.notifications import (
    BucketObject,
    Notifications,
    Offsets,
    QueueEnd,
    QueueMessage,
    objects_in,
)
from distributary.source.files.source import FilesSource
from tests.services.shared import unique
from tests.source.change_files import avro, events, found, named
from tests.source.files.test_files_s3 import server, source
from tests.source.s3_server import BUCKET, S3Server
from tests.topics import Topics
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.services.secured import SecuredServices

__all__ = ["server"]


def s3(*keys: str, bucket: str = BUCKET) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": bucket}, "object": {"key": key}},
            }
            for key in keys
        ]
    }


class Queue:
    """A topic of one partition in memory."""

    def __init__(self) -> None:
        self.topic: list[QueueMessage] = []
        self.kept, self.id = 0, "first"
        self.silent = False
        self.asked = 0

    def send(self, document: object) -> None:
        self.topic.append((json.dumps(document).encode(), None))

    def end(self) -> QueueEnd:
        self.asked += 1
        if self.silent:
            raise SourceUnavailableError("the broker does not answer", where="here")
        return QueueEnd(self.id, {("events", 0): len(self.topic)})

    def messages(self, begin: Offsets, end: Offsets) -> Iterator[QueueMessage]:
        start, stop = begin["events", 0], end["events", 0]
        if start < self.kept:
            raise SourceError("messages are gone", where="here")
        yield from self.topic[start:stop]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def following(
    queue: Queue, root: str = f"s3://{BUCKET}/in/", clock: Clock | None = None
) -> Notifications:
    notifications = Notifications(queue, root, list_every=3600, clock=clock or Clock())
    assert notifications.folders() is None
    notifications.confirm()
    return notifications


@pytest.mark.parametrize(
    "message",
    [
        s3("in/a+b/c%3D1.avro"),
        {"Type": "Notification", "Message": json.dumps(s3("in/a+b/c%3D1.avro"))},
        {"kind": "storage#object", "bucket": BUCKET, "name": "in/a b/c=1.avro", "size": "7"},
        {"message": {"attributes": {"bucketId": BUCKET, "objectId": "in/a b/c=1.avro"}}},
        {"subject": f"/blobServices/default/containers/{BUCKET}/blobs/in/a b/c=1.avro"},
        [{"subject": f"/blobServices/default/containers/{BUCKET}/blobs/in/a b/c=1.avro"}],
    ],
)
def test_what_services_send_names_an_object(message: object) -> None:
    one = [BucketObject(BUCKET, "in/a b/c=1.avro")]
    assert objects_in(json.dumps(message).encode(), ()) == one
    queue = Queue()
    notifications = following(queue)
    queue.send(message)
    assert notifications.folders() == {"a b"}


def test_attributes_of_a_message_name_an_object() -> None:
    pairs = {"bucketId": b"b", "objectId": b"in/x.avro", "eventType": b"OBJECT_FINALIZE"}
    headers = [{"key": key, "value": value} for key, value in pairs.items()]
    assert objects_in(b"", headers) == [BucketObject("b", "in/x.avro")]
    assert objects_in(None, [{"key": "objectId", "value": None}]) is None


UNCLEAR = [
    *(None, 1, "x", {}, [], {"Records": 1}, {"Records": [{}]}, {"Event": "s3:TestEvent"}, [1]),
    *(s3("in/a\n/x.avro"), s3("in/%C3%A4/x.avro"), s3("in//x.avro"), s3("in/a//x.avro")),
    *(s3("in/../x.avro"), s3("in/./x.avro"), s3("in/a%2525/x.avro")),
    {"Type": "Notification", "Message": "x"},
]


@pytest.mark.parametrize("message", UNCLEAR)
def test_what_is_not_clear_makes_the_whole_bucket_be_listed(message: object) -> None:
    queue = Queue()
    notifications = following(queue)
    queue.send(message)
    assert notifications.folders() is None
    notifications.confirm()
    queue.send(s3("in/a/x.avro"))
    assert notifications.folders() == {"a"}


def test_objects_elsewhere_are_no_news() -> None:
    queue = Queue()
    notifications = following(queue)
    assert notifications.folders() == set()
    queue.send(s3("in/a/x.avro", bucket="other"))
    queue.send(s3("inner/a/x.avro", "out/x.avro", "in/x.avro"))
    assert notifications.folders() == {""}
    container = following(Queue(), "abfss://changes@account.dfs.core.windows.net")
    assert container._path(BucketObject("changes", "a/x.avro")) == "a/x.avro"


def test_messages_are_read_again_until_their_files_are_in_the_list() -> None:
    queue = Queue()
    notifications = following(queue)
    queue.send(s3("in/a/x.avro"))
    assert notifications.folders() == {"a"}
    assert notifications.folders() == {"a"}
    notifications.confirm()
    assert notifications.folders() == set()


def test_everything_is_listed_at_intervals_and_after_losses() -> None:
    queue, clock = Queue(), Clock()
    notifications = following(queue, clock=clock)
    clock.now += 3600
    assert notifications.folders() is None
    # a listing that failed is not counted
    clock.now += 1
    assert notifications.folders() is None
    notifications.confirm()
    assert notifications.folders() == set()
    for change in ({"kept": 3}, {"id": "second"}, {"topic": []}):
        queue.send(s3("in/a/x.avro"))
        for name, value in change.items():
            setattr(queue, name, value)
        assert notifications.folders() is None, change
        queue.kept = 0
        notifications.confirm()
        assert notifications.folders() == set()
    for number in range(1001):
        queue.send(s3(f"in/{number}/x.avro"))
    assert notifications.folders() is None


def test_a_queue_that_is_silent_is_not_waited_for_each_time() -> None:
    queue, clock = Queue(), Clock()
    notifications = following(queue, clock=clock)
    queue.silent, before = True, queue.asked
    for _ in range(5):
        assert notifications.folders() is None
        notifications.confirm()
    assert queue.asked == before + 1
    queue.silent = False
    queue.send(s3("in/a/x.avro"))
    clock.now += 61
    # what was sent meanwhile is found by one more listing
    assert notifications.folders() is None
    notifications.confirm()
    assert notifications.folders() == set()


def test_files_of_a_bucket_are_found_once_whoever_tells_of_them(
    server: S3Server, tmp_path: Path
) -> None:
    queue, clock = Queue(), Clock()
    listings: list[str] = []
    settings = {"bootstrap_servers": "127.0.0.1:1", "topic": "events", "list_every": "1h"}

    def begun() -> FilesSource:
        one = source(server, "told", tmp_path, notifications=settings)
        one._notifications = Notifications(
            queue, f"s3://{BUCKET}/told", list_every=3600, clock=clock
        )
        return one

    def put(number: int, *, tell: bool = True, minute: str = "2024/05/09/06/56") -> str:
        path = named(number, minute=minute)
        server.put(f"told/{path}", avro(events(1, start=number)))
        if tell:
            queue.send(s3(f"told/{path}"))
        return path

    whole = BucketFiles.files

    def counted(self: BucketFiles) -> list[FoundFile]:
        listings.append(self.address)
        return whole(self)

    with patch.object(BucketFiles, "files", counted):
        first, one = put(0), begun()
        assert found(one) == [first]
        # told of twice, of a file that is gone, and of one in a folder of long ago
        second, late = put(1), put(2, minute="1999/01/01/00/00")
        queue.send(s3(f"told/{second}", "told/gone/x.avro"))
        assert found(one, 1) == sorted([late, second])
        assert found(one, 3) == []
        assert len(listings) == 1
        # nobody tells of this one, in a folder of its own
        silent = put(3, tell=False, minute="2024/05/09/06/57")
        assert found(one, 3) == []
        clock.now += 3600
        assert found(one, 3) == [silent]
        # another process lists everything, and finds nothing twice
        assert found(begun(), 4) == []
        assert len(listings) == 3


@pytest.mark.services
def test_a_topic_of_kafka_is_followed(services: SecuredServices) -> None:
    topics, name = Topics(services.kafka), unique("events")
    topics.create(name, 2)
    settings = {"bootstrap_servers": services.kafka, "topic": name}
    queue = KafkaQueue(FileNotifications.model_validate(settings))
    notifications = Notifications(queue, f"s3://{BUCKET}/in", list_every=3600)
    topics.send(name, [json.dumps(s3("in/before/x.avro")).encode()])
    assert notifications.folders() is None
    notifications.confirm()
    assert notifications.folders() == set()
    topics.send(name, [json.dumps(s3(f"in/{n}/x.avro")).encode() for n in range(3)], partition=1)
    headers = [("bucketId", BUCKET.encode()), ("objectId", b"in/header/x.avro")]
    topics.send(name, [b""], headers=headers)
    assert notifications.folders() == {"0", "1", "2", "header"}
    notifications.confirm()
    # another topic of the same name, which has as many messages
    before = queue.end().topic_id

    def is_another() -> bool:
        # the broker shows the deleted one a while longer, or none
        with suppress(SourceError):
            return queue.end().topic_id != before
        return False

    topics.delete(name)
    topics.create(name, 2)
    eventually(is_another, seconds=60)
    for partition, count in ((0, 2), (1, 3)):
        message = json.dumps(s3("in/again/x.avro")).encode()
        topics.send(name, [message] * count, partition=partition)
    assert notifications.folders() is None
    notifications.confirm()
    topics.grow(name, 3)
    assert notifications.folders() is None
    notifications.confirm()
    assert notifications.folders() == set()
