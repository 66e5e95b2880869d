"""Collections of garbage in Spark's workers skip what lives as long as they do."""

from __future__ import annotations

import gc

from ottla.pipeline.worker_memory import exclude_modules_from_collections


def test_what_a_first_task_left_is_excluded_from_collections_once() -> None:
    gc.unfreeze()
    exclude_modules_from_collections.cache_clear()
    try:
        exclude_modules_from_collections()
        count = gc.get_freeze_count()
        exclude_modules_from_collections()
        assert 1_000 < gc.get_freeze_count() <= count, "objects of later tasks are collected"
    finally:
        gc.unfreeze()
