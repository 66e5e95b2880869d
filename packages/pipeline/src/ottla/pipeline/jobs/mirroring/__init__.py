"""Topics of one cluster copied to another, each record once, and which offset became which."""

from ottla.pipeline.jobs.mirroring.offset_mapping_topic import read_mapping
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans

__all__ = ["Span", "Spans", "read_mapping"]
