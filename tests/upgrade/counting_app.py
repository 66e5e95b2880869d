"""An app with state in files, for both versions: counts by key, and payments that are made once.

Run it: python counting_app.py SERVERS FOLDER
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from ottla.streams import App, Context
from ottla.streams.dedupe import Dedupe, SqliteStore, by_key


def main(servers: str, folder: Path) -> None:
    """Run until SIGTERM."""
    app = App(
        "counting", servers, state_store="sqlite", state_dir=str(folder / "state"),
        commit_interval_ms=50, heartbeat_interval_ms=100, session_timeout_ms=6_000,
    )  # fmt: skip
    app.stream("orders", key=str, value=str).count().to("counts", value=int)
    ledger = sqlite3.connect(folder / "ledger.db", isolation_level=None, check_same_thread=False)
    ledger.execute("CREATE TABLE IF NOT EXISTS payments (message TEXT)")

    @app.handle("payments", dedupe=Dedupe(SqliteStore(folder / "marks.db"), by_key()))
    async def pay(payment: str, context: Context) -> None:
        ledger.execute("INSERT INTO payments VALUES (?)", (payment,))

    @app.on_startup
    async def say_started() -> None:
        print("started", flush=True)

    app.run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
