"""Records on their way through a topology, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ottla.consumer import ConsumerRecord
from ottla.streams.errors import RecordUndecodable, StateUndecodable
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import tumbling
from peers.stream_member import Crashed, Log, Member, record


class Order(msgspec.Struct):
    item: str
    amount: int


async def test_values_are_filtered_mapped_and_written() -> None:
    async def priced(order: Order) -> dict[str, int]:
        await asyncio.sleep(0)
        return {order.item: order.amount * 2}

    topology, log, seen = Topology(), Log(), list[Order]()
    orders = topology.stream("orders", key=str, value=Order)
    orders.filter(lambda order: order.amount > 1).peek(seen.append).map_values(priced).to("priced")

    await Member(topology, "orders", log).handle_all(
        [record(0, b"a", b'{"item":"tea","amount":1}'), record(1, b"b", b'{"item":"milk","amount":3}')]
    )

    assert log.rows("priced") == [(b"b", b'{"milk":6}')]
    assert seen == [Order("milk", 3)]


def later(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns something to await, though it is no coroutine function itself."""

    async def call(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return lambda *arguments: call(*arguments)


@pytest.mark.parametrize("made", [lambda function: function, later], ids=["plain", "async"])
async def test_functions_of_every_step_may_be_plain_or_async(made: Callable[[Any], Any]) -> None:
    topology, log = Topology(), Log()
    names = topology.global_table("names", key=str, value=str)
    words = topology.stream("orders", key=str, value=str).filter(made(bool)).peek(made(len))
    short, even, rest = words.branch(made(lambda w: len(w) < 3), made(lambda w: len(w) % 2 == 0))
    short.flat_map_values(made(list)).count(name="letters").to("short")
    even.map(made(lambda k, w: (w, k))).flat_map(made(lambda k, w: [(k, w), (w, k)])).to("even")
    totals = rest.key_by(made(lambda w: w[:1])).through("between", key=str, value=str)
    totals.to("totals")
    rest.join(names, made(lambda w, name: name + w), by=made(lambda w: w[-1:])).to("joined")
    member = Member(topology, "orders", log)
    member.tables = {("names", b"e"): b"E"}

    await member.handle_all([record(at, b"k", value) for at, value in enumerate((b"ab", b"abcd", b"abcde"))])

    assert log.rows("short") == [(b"k", b"1"), (b"k", b"2")]
    assert log.rows("even") == [(b"abcd", b"k"), (b"k", b"abcd")]
    assert log.rows("between") == [(b"a", b"abcde")]
    assert log.rows("joined") == [(b"k", b"Eabcde")]


async def test_map_flat_map_and_key_by_make_new_keys() -> None:
    topology, log = Topology(), Log()
    words = topology.stream("orders", key=str, value=str)
    words.map(lambda key, text: (text, key)).to("swapped")
    words.flat_map(lambda key, text: [(each, key) for each in text]).to("letters")
    words.key_by(len).to("lengths")
    words.flat_map_values(str.split).to("words")

    await Member(topology, "orders", log).handle(record(0, b"k", b"a b"))

    assert log.rows("swapped") == [(b"a b", b"k")]
    assert log.rows("letters") == [(b"a", b"k"), (b" ", b"k"), (b"b", b"k")]
    assert log.rows("lengths") == [(b"3", b"a b")]
    assert log.rows("words") == [(b"k", b"a"), (b"k", b"b")]


async def test_a_branch_takes_the_first_test_that_is_true_and_merge_joins_them_again() -> None:
    topology, log = Topology(), Log()
    numbers = topology.stream("orders", key=str, value=int)
    big, even, rest = numbers.branch(lambda n: n > 10, lambda n: n % 2 == 0)
    big.map_values(lambda n: f"big {n}").merge(rest.map_values(lambda n: f"rest {n}")).to("some")
    even.to("even")

    await Member(topology, "orders", log).handle_all(
        [record(at, b"k", value) for at, value in enumerate((b"12", b"4", b"3"))]
    )

    assert [value for _, value in log.rows("some")] == [b"big 12", b"rest 3"]
    assert [value for _, value in log.rows("even")] == [b"4"]


async def test_joins_look_the_key_up_and_drop_or_keep_what_has_no_row() -> None:
    topology, log = Topology(), Log()
    names = topology.table("names", key=str, value=str)
    regions = topology.global_table("regions", key=int, value=str)
    orders = topology.stream("orders", key=str, value=Order)
    orders.join(names, lambda order, name: f"{name} {order.item}").to("named")
    orders.left_join(names, lambda order, name: name or "nobody").to("kept")
    orders.join(regions, lambda order, region: region, by=lambda order: order.amount).to("regional")
    member = Member(topology, "orders", log)
    member.tables = {("names", b"a"): b"Ada", ("regions", b"2"): b"north"}

    await member.handle(record(0, b"a", b'{"item":"tea","amount":1}'))
    await member.handle(record(1, b"b", b'{"item":"tea","amount":2}'))
    await member.handle(record(2, None, b'{"item":"tea","amount":3}'))

    assert [value for _, value in log.rows("named")] == [b"Ada tea"]
    assert [value for _, value in log.rows("kept")] == [b"Ada", b"nobody", b"nobody"]
    assert [value for _, value in log.rows("regional")] == [b"north"]
    assert member.counters.without_key == 1


async def test_a_record_that_cannot_be_decoded_is_said_with_its_place() -> None:
    topology = Topology()
    topology.stream("orders", key=str, value=Order).to("copies")

    with pytest.raises(RecordUndecodable, match="offset 7") as raised:
        await Member(topology, "orders", Log()).handle(record(7, b"a", b"{"))

    assert raised.value.offset == 7


async def test_records_without_a_value_are_counted_and_left_out() -> None:
    topology, log = Topology(), Log()
    topology.stream("orders", key=str, value=Order).to("copies")
    member = Member(topology, "orders", log)

    await member.handle(record(0, b"a", None))

    assert (log.outputs, member.counters.without_value) == ([], 1)


async def test_an_aggregate_passes_on_each_new_value_and_none_removes_it() -> None:
    def nothing() -> int | None:
        return 0

    def added(total: int | None, n: int) -> int | None:
        return (total or 0) + n if n else None

    topology, log = Topology(), Log()
    numbers = topology.stream("orders", key=str, value=int)
    numbers.aggregate(nothing, added, name="sums").to("sums")

    await Member(topology, "orders", log).handle_all(
        [record(at, b"k", value) for at, value in enumerate((b"1", b"2", b"0", b"5"))]
    )

    assert [value for _, value in log.rows("sums")] == [b"1", b"3", None, b"5"]
    assert [value for _, value in log.rows("sums-changelog")] == [b"1", b"3", None, b"5"]


async def test_several_values_of_one_record_are_all_applied_once() -> None:
    topology, log = Topology(), Log()
    topology.stream("orders", key=str, value=str).flat_map_values(list).count(name="n").to("counts")
    member = Member(topology, "orders", log)

    await member.handle(record(0, b"k", b"xyz"))
    await member.handle(record(0, b"k", b"xyz"))  # redelivered

    assert [value for _, value in log.rows("counts")] == [b"1", b"2", b"3", b"3", b"3", b"3"]
    assert [value for _, value in log.rows("n-changelog")] == [b"3", b"3"]


async def test_a_redelivered_record_after_a_crash_changes_nothing() -> None:
    topology, log = Topology(), Log()
    topology.stream("orders", key=str, value=int).reduce(lambda a, b: a + b, name="sums").to("sums")
    first = Member(topology, "orders", log)
    records = [record(at, b"k", b"2") for at in range(3)]
    await first.handle_all(records)

    second = Member(topology, "orders", log)
    await second.restore()
    await second.handle_all([*records[1:], record(3, b"k", b"2")])  # the commit was behind the changelog

    assert [value for _, value in log.rows("sums")] == [b"2", b"4", b"6", b"6", b"6", b"8"]


async def test_a_failed_attempt_leaves_no_trace_in_the_store() -> None:
    topology, log = Topology(), Log(crash_at=1)
    topology.stream("orders", key=str, value=int).reduce(lambda a, b: a + b, name="sums").to("sums")
    member = Member(topology, "orders", log)
    with pytest.raises(Crashed):
        await member.handle(record(0, b"k", b"2"))

    log.crash_at = None
    await member.handle(record(0, b"k", b"2"))

    assert log.rows("sums") == [(b"k", b"2"), (b"k", b"2")]
    assert log.rows("sums-changelog") == [(b"k", b"2")]


# --- state that cannot be decoded


async def test_a_row_that_cannot_be_decoded_is_named_and_is_no_fault_of_the_record() -> None:
    topology, log = Topology(), Log()
    orders = topology.stream("orders", key=str, value=str)
    orders.join(topology.table("customers", key=str, value=Order), lambda order, row: row.item).to("out")
    member = Member(topology, "orders", log)
    member.tables["customers", b"a"] = b'{"item": 3}'

    with pytest.raises(StateUndecodable) as raised:
        await member.handle(record(7, b"a", b"tea"))

    assert str(raised.value) == (
        "the row of table 'customers' cannot be decoded, which a record needs (topic orders, partition 0, "
        "offset 7): ValidationError: Expected `str`, got `int` - at `$.item`; it is no Order from JSON: "
        "write the row of this key again, or set on_error={StateUndecodable: 'dead-letter'}"
    )


async def test_state_of_a_store_whose_type_changed_is_named_with_the_remedy() -> None:
    before, log = Topology(), Log()
    before.stream("orders", key=str, value=str).aggregate(str, lambda now, value: now + value, name="sums")
    await Member(before, "orders", log).handle(record(0, b"a", b"tea"))
    after = Topology()
    after.stream("orders", key=str, value=str).count(name="sums").to("out")
    member = Member(after, "orders", log)
    await member.restore()

    with pytest.raises(StateUndecodable, match=r"the state of store 'sums' \(key [0-9a-f]{16}\)") as raised:
        await member.handle(record(1, b"a", b"milk"))

    assert "it is no int from JSON: give the store another name=" in str(raised.value)


@pytest.mark.parametrize("final", [False, True], ids=["each", "final"])
async def test_windows_whose_type_changed_are_named(final: bool) -> None:
    before, log = Topology(), Log()
    before.stream("orders", key=str, value=str).count(name="sums")
    await Member(before, "orders", log).handle(record(0, b"a", b"tea"))
    after = Topology()
    windows = after.stream("orders", key=str, value=str).window(tumbling(1_000))
    (windows.final() if final else windows).count(name="sums").to("out")
    member = Member(after, "orders", log)
    await member.restore()

    with pytest.raises(StateUndecodable, match="it is no state of windows"):
        await member.handle(record(1, b"a", b"milk", 100))


# --- headers


async def test_records_that_are_written_keep_their_headers() -> None:
    topology, log = Topology(), Log()
    orders = topology.stream("orders", key=str, value=str)
    orders.map_values(str.upper).to("out")
    orders.count(name="counts").to("counts")
    headers = [("trace", b"1"), ("message-id", b"7"), ("trace", None)]

    await Member(topology, "orders", log).handle(with_headers(headers))

    assert [list(output.headers) for output in log.outputs if "changelog" not in output.topic] == [
        headers
    ] * 2


@pytest.mark.parametrize("made", [list, later(list)], ids=["plain", "async"])
async def test_records_that_were_made_of_one_do_not_share_its_message_id(made: Callable[[Any], Any]) -> None:
    """They would be taken for copies of each other, and all but the first left out."""
    topology, log = Topology(), Log()
    orders = topology.stream("orders", key=str, value=str)
    orders.flat_map_values(made).peek(later(len)).to("letters")
    orders.to("out")

    await Member(topology, "orders", log).handle(with_headers([("trace", b"1"), ("message-id", b"7")]))

    assert {(output.topic, *output.headers) for output in log.outputs} == {
        ("letters", ("trace", b"1")),
        ("out", ("trace", b"1"), ("message-id", b"7")),
    }


async def test_a_window_that_closes_has_none_of_the_headers_of_the_record_that_closes_it() -> None:
    topology, log = Topology(), Log()
    orders = topology.stream("orders", key=str, value=str)
    orders.window(tumbling(1_000)).final().count(name="counts").map_values(lambda row: row.value).to("counts")
    orders.to("out")
    member = Member(topology, "orders", log)

    await member.handle(record(0, b"a", b"tea", 0))
    await member.handle(with_headers([("trace", b"1")], offset=1, timestamp_ms=5_000))

    assert written_headers(log) == [("out", []), ("counts", []), ("out", [("trace", b"1")])]


def written_headers(log: Log) -> list[tuple[str, list[Any]]]:
    written = [output for output in log.outputs if not output.topic.endswith("changelog")]
    return [(output.topic, list(output.headers)) for output in written]


def with_headers(
    headers: list[tuple[str, bytes | None]], offset: int = 0, timestamp_ms: int = 0
) -> ConsumerRecord:
    return ConsumerRecord("orders", 0, offset, timestamp_ms, b"a", b"tea", headers=headers)
