"""The controller: one broker of the cluster, which elects partition leaders and informs all brokers."""

__all__: list[str] = []
