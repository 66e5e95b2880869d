"""Mirroring: topics of one cluster copied to another, each record once, with a mapping of offsets."""

from ottla.pipeline.jobs.mirroring.offset_mapping import read_mapping
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans

__all__ = ["Span", "Spans", "read_mapping"]
