"""The catalogs of Iceberg tables, opened by pyiceberg: a database, or a server."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog

from distributary.config.lake import LakeConfig
from distributary.model import layout
from distributary.store.base import refuse_links

if TYPE_CHECKING:
    from requests import Session

NAME = "distributary"
"""The name of the catalog; other readers need it for an SQL catalog, which keeps several catalogs
apart by name."""
_ANSWER_SECONDS = 60.0


def open_catalog(lake: LakeConfig) -> Catalog:
    """Open the catalog that the pipeline file names, or the lake's own catalog."""
    settings = lake.iceberg_catalog
    properties = {"warehouse": settings.warehouse or lake.address}
    if settings.type == "rest":
        properties["py-catalog-impl"] = f"{__name__}.{PatientRestCatalog.__name__}"
    else:
        properties["type"] = "sql"
    if settings.uri is not None:
        properties["uri"] = settings.uri.get_secret_value()
    elif settings.type != "rest":
        home = layout.iceberg_catalog(lake.address)
        refuse_links(home)
        os.makedirs(os.path.dirname(home), exist_ok=True)
        # Other processes may be writing to the catalog: wait for them.
        properties["uri"] = f"sqlite:///{quote(home)}?timeout=60"
    if settings.token is not None:
        properties["token"] = settings.token.get_secret_value()
    return load_catalog(NAME, **properties)


class PatientRestCatalog(RestCatalog):
    """A REST catalog with a timeout: pyiceberg itself would wait forever for an answer."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # Every request of the session goes through this method.
        session.request = partial(session.request, timeout=_ANSWER_SECONDS)  # type: ignore[method-assign]
        return session
