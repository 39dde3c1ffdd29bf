"""`produce orders`: simulated ones, or what somebody types."""

from __future__ import annotations

from typing import Any

from distributary.cli.actions.ask import ask_records
from distributary.cli.actions.produce import Teller, plain_table, show_sent
from distributary.cli.actions.produce_target import Opened, Target, open_target
from distributary.cli.verb import Invocation
from distributary.simulate.orders import OrderKind, OrdersPlan, produce_orders, typed_orders
from distributary.simulate.sent import Sent

_TOPICS = {OrderKind.ORDERS: "dev.orders"}
_SHARED_TOPIC = "dev.types"


def send_orders(
    call: Invocation,
    target: Target,
    *,
    interactive: bool,
    rate: float | None,
    kind: str,
    **numbers: Any,
) -> None:
    """Send orders, customers or products."""
    usual = _TOPICS.get(OrderKind(kind), _SHARED_TOPIC)
    plan = OrdersPlan(kind=OrderKind(kind), topic=target.topic or usual, **numbers)
    with open_target(target, topic=usual, sink=plain_table) as opened:
        if interactive:
            sent = _send_typed(call, plan, opened)
        else:
            sent = produce_orders(
                plan, registry=opened.registry, sink=opened.sink, rate=rate, on_round=Teller(call)
            )
        show_sent(call, sent, opened)


def _send_typed(call: Invocation, plan: OrdersPlan, opened: Opened) -> Sent:
    values = ask_records(call, plan.kind, version=plan.versions)
    typed = typed_orders(plan, values, registry=opened.registry)
    for count, message in enumerate(typed.messages(), start=1):
        # one by one: each is there before the next is asked for
        opened.sink.write([message])
        call.out.note(f"sent {count}")
    return typed.sent()
