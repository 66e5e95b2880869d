"""Send alerts to a webhook, one after the other, and again for some time while it does not answer."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Final

from ottla.console.watch.alerts import Event

_log = logging.getLogger(__name__)

MOST_WAITING: Final = 1_000
ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0


class Webhook:
    """Posts events as JSON. `put` never waits; with too many that wait, the oldest is dropped, and logged."""

    def __init__(self, url: str, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._url = url
        self._first_pause_s = first_pause_s
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(MOST_WAITING)

    def put(self, event: Event) -> None:
        """Send an event when those before it are sent."""
        if self._waiting.full():
            dropped = self._waiting.get_nowait()
            _log.warning("an alert is dropped, as too many wait", extra={"text": dropped.text})
        self._waiting.put_nowait(event)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send(await self._waiting.get())

    async def _send(self, event: Event) -> None:
        pause_s = self._first_pause_s
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await asyncio.to_thread(self._post, event)
                return
            except (OSError, ValueError, HTTPException) as error:  # URLError and HTTPError are OSErrors
                # The address may hold a secret in its path, and other errors its text: it stands in no log.
                reason = str(error) if isinstance(error, OSError) else type(error).__name__
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                facts = {"attempt": attempt, "attempts": ATTEMPTS, "reason": reason}
                _log.warning("the webhook did not take an alert", extra=facts)
            if attempt < ATTEMPTS:
                await asyncio.sleep(pause_s)
                pause_s *= 4

    def _post(self, event: Event) -> None:
        body = json.dumps(
            {
                "status": event.kind, "rule": event.rule, "cluster": event.cluster, "subject": event.subject,
                "text": f"{event.kind}: {event.text}", "at_s": event.at_s,
            }
        ).encode()  # fmt: skip
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
