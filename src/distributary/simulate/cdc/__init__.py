"""Changes of a simulated database, as the systems that watch databases tell of them."""

from distributary.simulate.cdc.debezium import DebeziumStream, MessageRound
from distributary.simulate.cdc.files import FileRound, FileStream
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.plan import (
    CALM,
    CHAOS,
    CdcFormat,
    CdcPlan,
    Feature,
    SourceType,
    parse_features,
)
from distributary.simulate.cdc.sent import CdcSent
from distributary.simulate.cdc.shapes import Claim
from distributary.simulate.cdc.truth import truth_document
from distributary.simulate.cdc.write import write_files, write_round

__all__ = [
    "CALM",
    "CHAOS",
    "CdcFormat",
    "CdcPlan",
    "CdcSent",
    "ChangeModel",
    "Claim",
    "DebeziumStream",
    "Feature",
    "FileRound",
    "FileStream",
    "MessageRound",
    "SourceType",
    "parse_features",
    "truth_document",
    "write_files",
    "write_round",
]
