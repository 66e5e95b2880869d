"""What all tests share: an example may take as long as it takes, for the machine may be busy."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):  # some sessions install no Hypothesis, and run no test that needs it
    from hypothesis import settings

    settings.register_profile("ottla", deadline=None)
    settings.load_profile("ottla")
