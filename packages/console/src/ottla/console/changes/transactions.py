"""Changes of transactions: abort one that hangs."""

from __future__ import annotations

from ottla.admin import Admin
from ottla.console.changes.plans import Field, Form, Plan, needs
from ottla.console.logins.access import Role
from ottla.console.web.fields import named, whole
from ottla.console.web.formats import moment
from ottla.protocol.topics import TopicPartition


@needs(Role.ADMINISTRATOR, topic="topic")
async def abort_transaction(admin: Admin, form: Form) -> Plan:
    """Plan the abort of a transaction that no coordinator will end."""
    name = named(form, "topic", "the topic")
    partition = TopicPartition(name, whole(form.get("partition", ""), "the partition"))
    offset = whole(form.get("offset", ""), "the offset")
    fields = tuple(
        Field(field, field, text, "hidden")
        for field, text in (("topic", name), ("partition", str(partition.partition)), ("offset", str(offset)))
    )
    title = f"Abort a transaction of {partition}"
    opened = await admin.transactions.opened([partition])
    found = next((other for other in opened if other.producer.start_offset == offset), None)
    if found is None:
        unclear = f"no transaction that begins at offset {offset} is open in {partition} any more"
        return Plan(title, "Abort", fields, unclear=unclear)
    if found.transactional_id is not None:
        unclear = (
            f"it is of the transactional id {found.transactional_id}, and does not hang: its coordinator "
            "ends it after its timeout, and the next producer of that id at once"
        )
        return Plan(title, "Abort", fields, unclear=unclear)
    producer = found.producer

    async def perform(admin: Admin) -> str:
        await admin.transactions.write_abort_marker(producer)
        return f"The transaction from offset {offset} on is aborted: readers of {partition} go on."

    row = (
        str(partition), str(producer.producer_id), str(producer.producer_epoch), str(offset),
        " ".join(moment(producer.last_timestamp_ms).split()),
    )  # fmt: skip
    summary = (
        "The marker of an abort is written in the name of the coordinator, which knows nothing of this "
        "transaction. Readers of committed records never get the records of it."
    )
    return Plan(
        title, "Abort", fields, summary, ("Partition", "Producer", "Epoch", "From offset", "Last record"),
        (row,), typed=name, perform=perform, back="/transactions",
    )  # fmt: skip
