"""The audit trail: who changed what, and when. It names no picture, so that forgetting is whole."""

from __future__ import annotations

import json
from typing import Any

from kedge.serve.database import Database, now


def record(database: Database, role: str, action: str, **detail: Any) -> None:
    database.change(
        "INSERT INTO events (time, role, action, detail) VALUES (?, ?, ?, ?)",
        (now(), role, action, json.dumps(detail, ensure_ascii=False)),
    )


def latest(database: Database, before: int | None, limit: int) -> list[dict[str, Any]]:
    """The latest events, or those before an id, the newest first."""
    rows = database.rows(
        "SELECT * FROM events WHERE ? IS NULL OR id < ? ORDER BY id DESC LIMIT ?",
        (before, before, limit),
    )
    return [{**dict(row), "detail": json.loads(row["detail"])} for row in rows]
