"""Why brokers write no dead letters of a share group to the topic that it names (KIP-1191)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.admin import Admin

LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
_ENABLED: Final = "errors.deadletterqueue.group.enable"
_CREATED: Final = "errors.deadletterqueue.auto.create.topics.enable"
_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
_TOPIC, _BROKER = 2, 4


async def why_no_letters(admin: Admin, topic: str) -> str | None:
    """Return the reason why a topic takes no dead letters; None if it does, or if that cannot be seen.

    Brokers accept the name all the same, as Kafka does, since topics and their own settings may follow.
    """
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    try:
        there = {known.name for known in await admin.topics.list()}
        broker = await _settings(admin, _BROKER, str((await admin.brokers.describe()).brokers[0].id))
        of_topic = await _settings(admin, _TOPIC, topic) if topic in there else {}
    except (ClientError, KafkaError):
        return None
    prefix = broker.get(_PREFIX) or ""
    if not topic.startswith(prefix):
        return f"the name must begin with {prefix} ({_PREFIX} of the brokers)"
    if topic not in there:
        return None if broker.get(_CREATED) == "true" else f"there is no topic {topic!r}"
    if of_topic.get(_ENABLED) != "true":
        return f"`ottla config alter --topic {topic} --set {_ENABLED}=true` is missing"
    return None


async def _settings(admin: Admin, kind: int, name: str) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in await admin.configs.describe(kind, name)}
