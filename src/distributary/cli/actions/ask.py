"""Asks at the terminal, or takes line after line from a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from rich.prompt import Prompt

from distributary.cli.verb import Invocation
from distributary.simulate.orders import OrderKind

_T = TypeVar("_T")
_INT, _LONG = 31, 63


def ask_records(call: Invocation, kind: OrderKind, *, version: int) -> Iterator[Any]:
    """Record after record, until the first answer is empty or nothing comes any more."""
    ask = _Asker(call)
    make: dict[OrderKind, Callable[[], Any]] = {
        OrderKind.ORDERS: lambda: ask.orders(version),
        OrderKind.CUSTOMER: ask.customer,
        OrderKind.PRODUCT: ask.product,
    }
    # the end of a pipe is as good as an empty line
    with suppress(EOFError):
        while (record := make[kind]()) is not None:
            yield record


class _Asker:
    def __init__(self, call: Invocation) -> None:
        self._call = call

    def orders(self, version: int) -> list[dict[str, Any]] | None:
        number = self._ask("order number, nothing to end", _whole(_LONG))
        if number is None:
            return None
        order = {
            "order_id": number,
            "customer": self._text("customer"),
            "description": self._text("description"),
            "products": self._products(version),
        }
        total = sum(product["price"] for product in order["products"])
        return [order | {"price": self._ask(f"price, else {total:g}", _amount, total)}]

    def _products(self, version: int) -> list[dict[str, Any]]:
        products: list[dict[str, Any]] = []
        while name := self._text("product, nothing when there is no other"):
            product: dict[str, Any] = {"name": name, "price": self._ask("its price", _amount, 0.0)}
            if version > 1:
                product["uuid"] = self._ask("its number, or nothing", _whole(_INT))
            products.append(product)
        return products

    def customer(self) -> dict[str, Any] | None:
        number = self._ask("customer number, nothing to end", _whole(_INT))
        if number is None:
            return None
        return {
            "customer_id": number,
            "customer_name": self._text("name"),
            "customer_email": self._text("email"),
            "customer_address": self._text("address"),
        }

    def product(self) -> dict[str, Any] | None:
        number = self._ask("product number, nothing to end", _whole(_INT))
        if number is None:
            return None
        return {
            "product_id": number,
            "product_name": self._text("name"),
            "product_price": self._ask("price", _amount, 0.0),
        }

    def _text(self, label: str) -> str:
        return str(self._ask(label, str, ""))

    def _ask(self, label: str, read: Callable[[str], _T], default: _T | None = None) -> Any:
        """One answer; asked again until it can be read, and the default for an empty line."""
        while True:
            console = self._call.out.margin.console
            typed = Prompt.ask(label, console=console, default="", show_default=False)
            if not typed.strip():
                return default
            try:
                return read(typed.strip())
            except ValueError as error:
                self._call.out.warn(str(error))


def _whole(bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not -(1 << bits) <= int(text) < 1 << bits:
            raise ValueError("a whole number is needed here")
        return int(text)

    return read


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number is needed here") from None
