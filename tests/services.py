"""One broker and one registry for the whole test run, on free ports and in a folder of the test.

They end with the process, also when it is interrupted or killed. Tests share them: a topic or a
subject needs a name of its own, and whoever kills one of the two must start it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distributary.lab.services.services import Services


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """`services.kafka`, `services.registry` and, with passwords and TLS, `services.security`."""
    # tests without them must not pay for the import
    from distributary.lab.services.services import Services

    with Services(tmp_path_factory.mktemp("services"), secured=True) as started:
        yield started


def unique(stem: str) -> str:
    """A name for a topic, a subject or a group that no other test has."""
    return f"{stem}-{uuid.uuid4().hex[:12]}"
