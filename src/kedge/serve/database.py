"""The SQLite file of a project: schema, transactions, and the revision that each change raises."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.serve.limits import Refused

VERSION = 1  # of the schema
BUSY_SECONDS = 30.0
# Deleted rows are overwritten (secure_delete); a commit is on disk when it returns (FULL).
PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
"""
SCHEMA = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE classes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,   -- as people see it
    key TEXT NOT NULL UNIQUE,    -- as model files have it: a class may be renamed
    removed INTEGER NOT NULL DEFAULT 0,  -- no longer named, though versions know it
    created REAL NOT NULL
);
CREATE TABLE pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sha256 TEXT NOT NULL UNIQUE,
    class INTEGER NOT NULL REFERENCES classes (id),
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,      -- of the picture and its thumbnail
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    uploaded REAL NOT NULL
);
CREATE INDEX pictures_of_class ON pictures (class, id);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,         -- queued, running, done, failed, cancelled, interrupted
    parent INTEGER NOT NULL,     -- the version that the round starts from
    version INTEGER,             -- the version that it has made
    settings TEXT NOT NULL,
    progress TEXT NOT NULL DEFAULT '{}',
    message TEXT NOT NULL DEFAULT '',
    attempts INTEGER NOT NULL DEFAULT 0,
    n_pictures INTEGER NOT NULL, -- also when they have been forgotten
    seconds REAL NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started REAL,
    ended REAL
);
CREATE TABLE versions (
    id INTEGER PRIMARY KEY,
    parent INTEGER REFERENCES versions (id),
    job INTEGER REFERENCES jobs (id),
    state TEXT NOT NULL,         -- candidate, accepted, discarded
    method TEXT NOT NULL,
    summary TEXT NOT NULL,       -- JSON: classes, outcome
    bytes INTEGER NOT NULL,
    created REAL NOT NULL
);
CREATE TABLE job_pictures (
    job INTEGER NOT NULL REFERENCES jobs (id),
    picture INTEGER NOT NULL REFERENCES pictures (id) ON DELETE CASCADE,
    PRIMARY KEY (job, picture)
) WITHOUT ROWID;
CREATE INDEX jobs_of_picture ON job_pictures (picture);
CREATE TABLE features (
    picture INTEGER NOT NULL REFERENCES pictures (id) ON DELETE CASCADE,
    version INTEGER NOT NULL REFERENCES versions (id) ON DELETE CASCADE,
    vector BLOB NOT NULL,        -- float32
    PRIMARY KEY (picture, version)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    detail TEXT NOT NULL
);
"""
Row = sqlite3.Row
Values = Sequence[Any]


class Database:
    """One connection, used by one thread at a time. Reads are short, so they share its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        try:
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.executescript(PRAGMAS)
            self._create()
        except sqlite3.Error as error:
            raise KedgeError(f"{path}: not readable as a project of kedge ({error}).") from None
        self.revision = int(self.value("SELECT value FROM settings WHERE key = 'revision'"))

    def _create(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise KedgeError(
                f"{self.path}: this project was written by a newer kedge; update kedge to read it."
            )
        if version == 0:
            self._connection.executescript(
                f"BEGIN; {SCHEMA} INSERT INTO settings VALUES ('revision', '0'); "
                f"PRAGMA user_version = {VERSION}; COMMIT;"
            )

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Say in a sentence that the disk is full, or the file damaged."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            raise Refused(507, f"The project's database cannot be used ({error}).") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on disk when the block ends. Raises the revision. May be nested."""
        with self._lock:
            if self._depth == 0:
                with self._faults():
                    self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._commit()

    def _commit(self) -> None:
        try:
            with self._faults():
                self._connection.execute(
                    "UPDATE settings SET value = ? WHERE key = 'revision'",
                    (str(self.revision + 1),),
                )
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self.revision += 1

    def change(self, sql: str, values: Values = ()) -> int:
        """Run a statement, in a transaction of its own if there is none; returns the new row's id,
        or the number of rows for statements that are no INSERT."""
        with self.transaction(), self._faults():
            cursor = self._connection.execute(sql, values)
            return int(cursor.lastrowid or 0) if sql.startswith("INSERT") else cursor.rowcount

    def change_many(self, sql: str, values: Sequence[Values]) -> None:
        with self.transaction(), self._faults():
            self._connection.executemany(sql, values)

    def rows(self, sql: str, values: Values = ()) -> list[Row]:
        with self._lock, self._faults():
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Values = ()) -> Row | None:
        with self._lock, self._faults():
            found: Row | None = self._connection.execute(sql, values).fetchone()
            return found

    def value(self, sql: str, values: Values = ()) -> Any:
        """The first column of the first row; None if there is none."""
        found = self.row(sql, values)
        return None if found is None else found[0]

    def setting(self, key: str) -> str | None:
        found: str | None = self.value("SELECT value FROM settings WHERE key = ?", (key,))
        return found

    def set_setting(self, key: str, value: str) -> None:
        self.change("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    def bytes_used(self) -> int:
        """Of its file, when all is written to it."""
        return int(self.value("PRAGMA page_count")) * int(self.value("PRAGMA page_size"))

    def scrub(self) -> None:
        """Leave nothing of deleted rows in the write-ahead log; in the file they are zeros."""
        with self._lock, self._faults():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def purge(self) -> None:
        """Leave nothing of deleted rows in the file or in its write-ahead log."""
        with self._lock, self._faults():
            self.scrub()
            self._connection.execute("VACUUM")
            self.scrub()

    def check(self) -> str:
        """'ok', or what SQLite's integrity check finds."""
        return str(self.value("PRAGMA integrity_check"))

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def now() -> float:
    """Seconds since 1970, as all times of a project are stored."""
    return time.time()
