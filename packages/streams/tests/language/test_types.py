"""The types of streams in mypy: `nox -s types` fails if it misses one of these errors, or loses a type."""

from __future__ import annotations

from typing import assert_type

import msgspec

from ottla.streams.language.stream import Stream
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import WindowValue, tumbling


class Order(msgspec.Struct):
    customer: str
    amount: float


class Customer(msgspec.Struct):
    name: str


class Priced(msgspec.Struct):
    name: str
    amount: float


async def looked_up(order: Order) -> Priced:
    return Priced(order.customer, order.amount)


async def added(total: float, order: Order) -> float:
    return total + order.amount


def test_types_follow_maps_joins_and_aggregates() -> None:
    topology = Topology()
    customers = topology.table("customers", key=str, value=Customer)
    regions = topology.global_table("regions", key=int, value=str)

    orders = topology.stream("orders", key=str, value=Order)
    priced = orders.join(customers, lambda order, customer: Priced(customer.name, order.amount))
    by_amount = orders.key_by(lambda order: int(order.amount)).through("by-amount", key=int)

    assert_type(orders, Stream[str, Order])
    assert_type(orders.filter(lambda order: order.amount > 1), Stream[str, Order])
    assert_type(priced, Stream[str, Priced])
    assert_type(orders.map_values(looked_up), Stream[str, Priced])
    assert_type(orders.map(lambda key, order: (order.amount, key)), Stream[float, str])
    assert_type(orders.flat_map_values(lambda order: [order.amount]), Stream[str, float])
    assert_type(by_amount, Stream[int, Order])
    assert_type(by_amount.count(), Stream[int, int])
    joined = orders.left_join(regions, lambda order, region: region, by=lambda order: int(order.amount))
    assert_type(joined, Stream[str, str | None])
    totals = orders.window(tumbling(60_000)).aggregate(lambda: 0.0, lambda total, order: total + order.amount)
    assert_type(totals, Stream[str, WindowValue[float]])
    assert_type(orders.aggregate(float, added, name="sums"), Stream[str, float])
    sums = orders.window(tumbling(60_000)).aggregate(float, added, name="sums-of-minutes")
    assert_type(sums, Stream[str, WindowValue[float]])


def test_what_does_not_fit_is_an_error_of_types() -> None:
    topology = Topology()
    customers = topology.table("customers", key=str, value=Customer)
    orders = topology.stream("orders", key=str, value=Order)
    by_number = topology.stream("numbered", key=int, value=Order)

    orders.filter(lambda order: order.price > 1)  # type: ignore[attr-defined]
    orders.map_values(lambda order: order.amount).filter(lambda amount: amount.name == "")  # type: ignore[attr-defined]
    by_number.join(customers, lambda order, customer: customer)  # type: ignore[arg-type, return-value]
    orders.left_join(customers, lambda order, customer: customer.name)  # type: ignore[arg-type, return-value, union-attr]
    orders.to("priced", value=Priced)  # type: ignore[arg-type]
    orders.merge(by_number)  # type: ignore[arg-type]
    orders.aggregate(str, added)  # type: ignore[misc]
    orders.reduce(lambda before, order: order.amount)  # type: ignore[arg-type, return-value]
