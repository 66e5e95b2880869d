"""Frozen value classes that cost little to define: those of ottla-zookeeper, which knows no broker."""

from ottla.zookeeper.frozen_classes import declared, field_group, frozen, replace

__all__ = ["declared", "field_group", "frozen", "replace"]
