"""One PostgreSQL and one Kafka Connect with Debezium for the whole test run, on free ports.

They end with the process, also when it is interrupted or killed, and leave no data. Tests share
them: a schema and a connector need names of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distributary.lab.services.debezium import Debezium
    from distributary.lab.services.postgres import Postgres
    from distributary.lab.services.services import Services


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """`postgres.execute` runs SQL, `postgres.rows` gives what a query finds."""
    # tests without it must not pay for the import
    from distributary.lab.services.postgres import Postgres

    with Postgres(tmp_path_factory.mktemp("postgres")) as started:
        yield started


@pytest.fixture(scope="session")
def debezium(tmp_path_factory: pytest.TempPathFactory, services: Services) -> Iterator[Debezium]:
    """`debezium.follow` begins to write the changes of a database to the broker of `services`."""
    from distributary.lab.services.debezium import Debezium

    with Debezium(tmp_path_factory.mktemp("connect"), kafka=services.kafka) as started:
        yield started
