"""One of every server for each process of a test run, on free ports and in folders of the tests.

They end with the process, also when it is interrupted or killed. Tests share them: a topic, a
subject, a schema or a connector needs a name of its own, and whoever kills a server must start it
again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distributary_lab.services.services import Services
    from tests.services.debezium import Debezium
    from tests.services.postgres import Postgres
    from tests.services.secured import SecuredServices


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServices]:
    """`services.kafka`, `services.registry` and, with passwords and TLS, `services.security`."""
    # tests without them must not pay for the import
    from tests.services.secured import SecuredServices

    with SecuredServices(tmp_path_factory.mktemp("services")) as started:
        yield started


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A broker and a registry that may be killed without hurting other tests."""
    from distributary_lab.services.services import Services

    with Services(tmp_path_factory.mktemp("mortal")) as started:
        yield started


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """`postgres.execute` runs SQL, `postgres.rows` gives what a query finds."""
    from tests.services.postgres import Postgres

    with Postgres(tmp_path_factory.mktemp("postgres")) as started:
        yield started


@pytest.fixture(scope="session")
def connect(
    tmp_path_factory: pytest.TempPathFactory, services: SecuredServices
) -> Iterator[Debezium]:
    """The worker behind `debezium`."""
    from tests.services.debezium import Debezium

    with Debezium(tmp_path_factory.mktemp("connect"), kafka=services.kafka) as started:
        yield started


@pytest.fixture(scope="module")
def debezium(connect: Debezium) -> Iterator[Debezium]:
    """`debezium.follow` begins to write the changes of a database to the broker of `services`."""
    yield connect
    # each asks its database twenty times a second, for as long as it is there
    connect.forget_all()


def unique(stem: str) -> str:
    """A name for a topic, a subject or a group that no other test has."""
    return f"{stem}-{uuid.uuid4().hex[:12]}"
