"""Settings of one client that are given to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.client.settings import SettingError, from_properties
from ottla.consumer import ConsumerConfig
from ottla.producer import ProducerConfig


@pytest.mark.parametrize(
    ("config", "name", "owner"),
    [(ProducerConfig, "group_id", "consumer"), (ConsumerConfig, "linger_ms", "producer")],
)
def test_a_setting_of_the_other_client_is_said_to_be_that_ones(config: Any, name: str, owner: str) -> None:
    dotted = name.replace("_", ".")
    page = rf"\(docs/reference/{owner}-settings\.md\)"

    for give in (config, config.of):
        with pytest.raises(SettingError, match=rf"^{name} is a setting of the {owner} {page}$"):
            give(**{name: 1})
    with pytest.raises(SettingError, match=rf"^{dotted} is a setting of the {owner} {page}$"):
        config.from_properties({dotted: "1"})


def test_a_misspelled_setting_of_another_client_is_refused_with_the_nearest_one_and_its_page() -> None:
    with pytest.raises(SettingError) as caught:
        from_properties(ClientConfig, {"linger.mss": "5"})

    assert str(caught.value) == (
        "there is no setting 'linger.mss'; did you mean 'linger.ms', a setting of the producer "
        "(docs/reference/producer-settings.md)?"
    )
    for owner in ("producer", "consumer", "streams"):
        assert Path(__file__).parents[2].joinpath(f"docs/reference/{owner}-settings.md").exists()
