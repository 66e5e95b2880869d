"""Limits on connections, in all and from one address."""

from ottla.broker.network.connection_quotas import ConnectionQuotas, parse_overrides


def test_an_override_stands_above_the_limit_for_all() -> None:
    limits = ConnectionQuotas(100, 1, parse_overrides("10.0.0.1:3, [::1]:2"))

    assert [limits.take("10.0.0.1") is None for _ in range(4)] == [True, True, True, False]
    assert [limits.take("::1") is None for _ in range(3)] == [True, True, False]
    assert [limits.take("10.0.0.2") is None for _ in range(2)] == [True, False]
