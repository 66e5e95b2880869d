"""The web console: clusters, topics, partitions, replicas, and groups with their lag, in a browser."""

from ottla.client.moved_modules import MovedModules

__version__ = "0.1.0"

__all__ = ["__version__"]

MovedModules(
    {
        "ottla.console.clusters.rest": "ottla.registry.rest",
        "ottla.console.registry.client": "ottla.registry.client",
        "ottla.console.registry.framing": "ottla.registry.framing",
        "ottla.console.registry.schemas": "ottla.registry.schemas",
    },
    "ottla-registry",
).install()
