"""Settings of one client that are given to another."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.settings import SettingError
from ottla.consumer import ConsumerConfig
from ottla.producer import ProducerConfig


@pytest.mark.parametrize(
    ("config", "name", "owner"),
    [(ProducerConfig, "group_id", "consumer"), (ConsumerConfig, "linger_ms", "producer")],
)
def test_a_setting_of_the_other_client_is_said_to_be_that_ones(config: Any, name: str, owner: str) -> None:
    dotted = name.replace("_", ".")

    for give in (config, config.of):
        with pytest.raises(SettingError, match=f"^{name} is a setting of the {owner}$"):
            give(**{name: 1})
    with pytest.raises(SettingError, match=f"^{dotted} is a setting of the {owner}$"):
        config.from_properties({dotted: "1"})
