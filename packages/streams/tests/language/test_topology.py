"""Declarations that are valid, and the one line about those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ottla.streams.errors import TopologyError
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import tumbling


class Order(msgspec.Struct):
    customer: str
    amount: int


def test_a_plan_is_split_where_a_stream_goes_through_a_topic() -> None:
    topology = Topology()
    orders = topology.stream("orders", key=str, value=Order)
    by_customer = orders.key_by(lambda order: order.customer).through("by-customer", key=str)
    by_customer.count(name="per-customer").to("counts")

    plan = topology.plan()

    assert plan.topics == ("orders", "by-customer")
    assert plan.parts["orders"].stores == ()
    assert [store.name for store in plan.parts["by-customer"].stores] == ["per-customer"]
    assert plan.parts["by-customer"].fed_by == "orders"


def test_a_plan_has_the_tables_of_each_topic() -> None:
    topology = Topology()
    customers = topology.table("customers", key=str, value=str)
    regions = topology.global_table("regions", key=str, value=str)
    topology.stream("orders", key=str, value=Order).join(customers, lambda order, name: name).to("a")
    topology.stream("returns", key=str, value=Order).join(regions, _second, by=_customer).to("b")

    plan = topology.plan()

    assert [table.topic for table in plan.parts["orders"].tables] == ["customers"]
    assert [table.topic for table in plan.parts["returns"].tables] == ["regions"]
    assert [table.topic for table in plan.global_tables] == ["regions"]


def _second(_: object, second: str) -> str:
    return second


def _customer(order: Order) -> str:
    return order.customer


def test_stores_are_named_by_their_topic_where_no_name_is_given() -> None:
    topology = Topology()
    orders = topology.stream("orders", key=str, value=Order)
    orders.count()
    orders.window(tumbling(1_000)).reduce(lambda before, order: order)

    (first, second) = topology.plan().parts["orders"].stores

    assert (first.name, second.name) == ("orders-count", "orders-reduce")


def rekeyed_aggregate(topology: Topology) -> None:
    topology.stream("orders", key=str, value=Order).key_by(_customer).count()


def rekeyed_join(topology: Topology) -> None:
    table = topology.table("customers", key=str, value=str)
    topology.stream("orders", key=str, value=Order).map(lambda k, v: (v.customer, v)).join(table, _second)


def merged_aggregate(topology: Topology) -> None:
    orders = topology.stream("orders", key=str, value=Order)
    orders.merge(topology.stream("returns", key=str, value=Order)).count()


def aggregate_of_closed_windows(topology: Topology) -> None:
    counts = topology.stream("orders").window(tumbling(1_000)).final().count()
    counts.count(name="again")


def foreign_table(topology: Topology) -> None:
    table = Topology().table("customers", key=bytes, value=str)
    topology.stream("orders").join(table, lambda order, name: name)


def no_table(topology: Topology) -> None:
    topology.stream("orders").join("customers", lambda order, name: name)  # type: ignore[call-overload]


def global_table_by_nothing(topology: Topology) -> None:
    table = topology.global_table("regions", key=bytes, value=str)
    topology.stream("orders").join(table, lambda order, name: name)  # type: ignore[call-overload]


def two_stores_of_a_name(topology: Topology) -> None:
    topology.stream("orders").count()
    topology.stream("orders").count()


def bad_store_name(topology: Topology) -> None:
    topology.stream("orders").count(name="per customer")


def two_tables_of_a_topic(topology: Topology) -> None:
    topology.table("customers", key=str, value=str)
    topology.global_table("customers", key=str, value=str)


def unknown_type_read_back(topology: Topology) -> None:
    topology.stream("orders").map_values(len).through("lengths")


def unknown_state(topology: Topology) -> None:
    topology.stream("orders").map_values(len).reduce(lambda before, length: before + length)


def own_output(topology: Topology) -> None:
    topology.stream("orders").through("orders")


def read_twice(topology: Topology) -> None:
    topology.stream("priced")
    topology.stream("orders").through("priced")


def no_form(topology: Topology) -> None:
    topology.stream("orders", value=Topology)


def no_streams(topology: Topology) -> None:
    topology.plan()


def no_window(topology: Topology) -> None:
    topology.stream("orders").window(tumbling(0))


def window_of_text(topology: Topology) -> None:
    topology.stream("orders").window(tumbling("1m"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "line"),
    [
        (rekeyed_aggregate, 'key_by changed the key before count: add .through("topic") between them'),
        (rekeyed_join, "map changed the key before join with 'customers': add .through(\"topic\")"),
        (
            merged_aggregate,
            'count would take records of orders and returns: add .through("topic") after merge',
        ),
        (aggregate_of_closed_windows, 'count of a stream of closed windows: add .through("topic") before it'),
        (foreign_table, "join needs a stream or table of the same app; this one is of another"),
        (no_table, "join needs a table, not 'customers'; make one with .table(...)"),
        (global_table_by_nothing, "join with the global table 'regions' needs by=function of the value"),
        (two_stores_of_a_name, "there are two stores named 'orders-count'; give one of them another name="),
        (bad_store_name, "the store name 'per customer' cannot be part of a topic"),
        (two_tables_of_a_topic, "there are two tables of 'customers'; declare it once and use it again"),
        (unknown_type_read_back, 'through("lengths") cannot know the type to read back; add value=TYPE'),
        (unknown_state, "reduce of store 'orders-reduce' cannot know the type of its values; add state=TYPE"),
        (own_output, "through('orders') would read its own output again; name another topic"),
        (read_twice, "through('priced'): a stream reads this topic already; merge both before it"),
        (no_form, "has no form in JSON"),
        (no_streams, 'there is no stream; declare one with .stream("topic", ...)'),
        (window_of_text, "a window needs whole milliseconds, such as tumbling(60_000), not '1m'"),
        (no_window, "a window of 0 ms is too small; give at least 1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(declare: Callable[[Topology], Any], line: str) -> None:
    with pytest.raises(TopologyError) as raised:
        declare(Topology())

    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
