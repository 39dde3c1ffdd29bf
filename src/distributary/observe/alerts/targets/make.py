"""From the settings of targets to the targets."""

from __future__ import annotations

from distributary.config.alert_targets import (
    EmailTarget,
    PagerDutyTarget,
    SlackTarget,
    WebhookTarget,
)
from distributary.config.alerts import Alerts
from distributary.observe.alerts.targets.base import Target
from distributary.observe.alerts.targets.email import Email
from distributary.observe.alerts.targets.pagerduty import PagerDuty
from distributary.observe.alerts.targets.slack import Slack
from distributary.observe.alerts.targets.webhook import Webhook


def make_targets(alerts: Alerts) -> tuple[Target, ...]:
    """All targets, in the order of the file."""
    pairs = zip(alerts.to, alerts.names, strict=True)
    return tuple(_make(config, name) for config, name in pairs)


def _make(config: WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget, name: str) -> Target:
    match config:
        case WebhookTarget():
            return Webhook(config, name=name)
        case SlackTarget():
            return Slack(config, name=name)
        case PagerDutyTarget():
            return PagerDuty(config, name=name)
        case EmailTarget():
            return Email(config, name=name)
