"""What a broker's no means for whoever sends to it."""

from __future__ import annotations

from confluent_kafka import KafkaError

from distributary.errors import SourceError, SourceUnavailableError

ALREADY_THERE = KafkaError.TOPIC_ALREADY_EXISTS
NOT_THERE = KafkaError.UNKNOWN_TOPIC_OR_PART

# librdkafka's own codes are negative and have no public names
_ALL_BROKERS_DOWN = -187
_REFUSED = {
    # authentication, TLS
    -169,
    -181,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_UNFIT = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}


def telling(known: KafkaError | None, new: KafkaError) -> KafkaError:
    """Of two complaints of a client the one that says more."""
    return known if known is not None and new.code() == _ALL_BROKERS_DOWN else new


def explained(error: KafkaError, *, what: str, servers: str) -> SourceError:
    """The error to raise; whatever a later try could heal has the exit code for that."""
    if error.code() in _REFUSED:
        return SourceError(
            "the broker refuses this client",
            where=servers,
            evidence=error.str(),
            next_step="send to a listener without a password, and to a topic that may be written",
        )
    if error.code() in _UNFIT:
        return SourceError(
            what,
            where=servers,
            evidence=error.str(),
            next_step="change what the broker or the topic allows, or send something else",
        )
    return SourceUnavailableError(
        what,
        where=servers,
        evidence=error.str(),
        next_step="start it (for a trial: `distributary dev up`), "
        "or name another one with --bootstrap-servers",
    )
