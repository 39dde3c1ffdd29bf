"""Orders, customers and products, each a function of a seed and a number."""

from __future__ import annotations

from typing import Any

from distributary.simulate.dice import roll, seed_for

# letters of one to four bytes each
_CUSTOMERS = (
    "Ada Lovelace",
    "Zoë Kästner",
    "Søren Ångström",
    "Łucja Żak",
    "Ιωάννα Παππά",
    "Ольга Ильина",
    "山田 太郎",
    "李 小龙",
    "नीला शर्मा",
    "Zé Conceição",
)
_STREETS = ("Rue de la Cité", "Lindenstraße", "Calle del Niño", "Nyhavn", "桜通り")
_PRODUCTS = (
    ("shoes", 4999),
    ("t-shirt", 1999),
    ("café crème", 350),
    ("Müsli", 429),
    ("茶", 899),
    ("jalapeño 🌶", 199),
)
_WISHES = ("as a gift 🎁", "please ring twice", "vor dem Wochenende", "déjà payé", "")
_MOST_ORDERS = 3

Record = dict[str, Any]


def order_list(seed: int, row: int, *, version: int) -> list[Record]:
    """The orders of one message: one to three."""
    bits = roll(seed_for(seed, "orders"), row)
    return [
        _order(seed, row * _MOST_ORDERS + k, version=version)
        for k in range(1 + bits % _MOST_ORDERS)
    ]


def _order(seed: int, number: int, *, version: int) -> Record:
    bits = roll(seed_for(seed, "order"), number)
    cart = [
        _PRODUCTS[(bits >> 8 * k) % len(_PRODUCTS)] for k in range(1 + (bits >> 32) % _MOST_ORDERS)
    ]
    return {
        "order_id": 1 + number,
        "customer": _CUSTOMERS[(bits >> 40) % len(_CUSTOMERS)],
        "description": _WISHES[(bits >> 48) % len(_WISHES)],
        # in cents until here, so that sums are exact
        "price": sum(cents for _, cents in cart) / 100,
        "products": [
            {"name": name, "price": cents / 100} | ({"uuid": 1 + at} if version > 1 else {})
            for at, (name, cents) in enumerate(cart)
        ],
    }


def customer(seed: int, row: int) -> Record:
    """One customer."""
    bits = roll(seed_for(seed, "customers"), row)
    return {
        "customer_id": 1 + row,
        "customer_name": _CUSTOMERS[bits % len(_CUSTOMERS)],
        "customer_email": f"customer{row}@example.com",
        "customer_address": f"{_STREETS[(bits >> 8) % len(_STREETS)]} {1 + (bits >> 16) % 99}",
    }


def product(seed: int, row: int) -> Record:
    """One product."""
    bits = roll(seed_for(seed, "products"), row)
    name, cents = _PRODUCTS[bits % len(_PRODUCTS)]
    return {"product_id": 1 + row, "product_name": name, "product_price": cents / 100}
