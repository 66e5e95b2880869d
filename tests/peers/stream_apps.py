"""Apps that are run on the driver and on a broker."""

from __future__ import annotations

from typing import Any

import msgspec

from ottla.streams import App, Context

FAST = {"commit_interval_ms": 20, "heartbeat_interval_ms": 100, "retry_backoff_ms": 10}
"""For a broker, where time is real."""


class Order(msgspec.Struct):
    """A record of the topic of orders."""

    amount: int
    item: str = "tea"


def pricing(**settings: Any) -> App:
    """Three per piece; a negative amount fails, and 13 stops the app."""
    wanted = {"retries": 2, "dead_letter_topic": "orders.failed", "value_serializer": "json"}
    app = App("billing", **{**wanted, **FAST, **settings})

    @app.handle("orders", on_error={LookupError: "stop"})
    async def price(order: Order, context: Context) -> None:
        if order.amount == 13:
            raise LookupError("no 13")
        if order.amount < 0:
            raise ValueError("negative")
        await context.send("priced", {"price": 3 * order.amount}, key=context.record.key)

    return app


def shop(**settings: Any) -> App:
    """Joins orders with a table by item, counts them, and sums them by minute."""
    app = App("shop", **{**FAST, **settings})
    items = app.table("items", key=str, value=str)
    orders = app.stream("orders", key=str, value=Order).filter(lambda order: order.amount > 0)
    by_item = orders.key_by(lambda order: order.item).through("by-item", key=str, value=Order)
    by_item.join(items, lambda order, label: f"{order.amount} {label}").to("labelled", value=str)
    by_item.count().to("counts", value=int)
    return app
