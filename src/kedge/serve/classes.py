"""The classes of a project. A class is known by its id; its name may change.

Model files have a class under its `key`: the name that it had when it was made. A class that some
version has learned is never deleted, only removed from naming, since those versions go on knowing
it; a class that is made anew under its name is the same class again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kedge.data.class_names import name_key
from kedge.serve.database import Database, now
from kedge.serve.limits import Refused
from kedge.utils.text import display_name, normalize_name

LONGEST_NAME = 200  # characters
MOST_CLASSES = 20_000


@dataclass(frozen=True)
class ClassRow:
    id: int
    name: str
    key: str
    removed: bool


class Classes:
    def __init__(self, database: Database) -> None:
        self.database = database

    def all(self) -> list[ClassRow]:
        """Every class that is not removed, by its id."""
        rows = self.database.rows(
            "SELECT id, name, key, removed FROM classes WHERE NOT removed ORDER BY id"
        )
        return [ClassRow(row["id"], row["name"], row["key"], False) for row in rows]

    def get(self, class_id: int) -> ClassRow:
        row = self.database.row(
            "SELECT id, name, key, removed FROM classes WHERE id = ? AND NOT removed", (class_id,)
        )
        if row is None:
            raise Refused(404, f"There is no class with the number {class_id}.")
        return ClassRow(row["id"], row["name"], row["key"], False)

    def make(self, name: str) -> ClassRow:
        """A new class, or a removed one of this name again."""
        name = checked_name(name)
        with self.database.transaction():
            n = self.database.value("SELECT COUNT(*) FROM classes")
            if n >= MOST_CLASSES:
                raise Refused(409, f"This project has {n} classes, which is the limit.")
            self._check_free(name, None)
            row = self.database.row("SELECT id FROM classes WHERE name = ? AND removed", (name,))
            if row is not None:
                self.database.change("UPDATE classes SET removed = 0 WHERE id = ?", (row["id"],))
                return self.get(row["id"])
            return self.get(self._insert(name, self._free_key(name)))

    def add_known(self, keys: Iterable[str]) -> None:
        """Make sure that there is a class for each name in a model file."""
        with self.database.transaction():
            known = {row["key"] for row in self.database.rows("SELECT key FROM classes")}
            for key in keys:
                if key not in known:
                    taken = self.database.row("SELECT 1 FROM classes WHERE name = ?", (key,))
                    self._insert(key if taken is None else self._free_name(key), key)

    def rename(self, class_id: int, name: str) -> ClassRow:
        name = checked_name(name)
        with self.database.transaction():
            self.get(class_id)
            self._check_free(name, class_id)
            # A removed class gives its name away; it keeps its key.
            row = self.database.row("SELECT id FROM classes WHERE name = ? AND removed", (name,))
            if row is not None:
                change = "UPDATE classes SET name = ? WHERE id = ?"
                self.database.change(change, (self._free_name(name), row["id"]))
            self.database.change("UPDATE classes SET name = ? WHERE id = ?", (name, class_id))
        return self.get(class_id)

    def remove(self, class_id: int, learned: bool) -> None:
        """Delete a class without pictures, or if a version has learned it, stop naming it."""
        if learned:
            self.database.change("UPDATE classes SET removed = 1 WHERE id = ?", (class_id,))
        else:
            self.database.change("DELETE FROM classes WHERE id = ?", (class_id,))

    def _insert(self, name: str, key: str) -> int:
        return self.database.change(
            "INSERT INTO classes (name, key, created) VALUES (?, ?, ?)", (name, key, now())
        )

    def _check_free(self, name: str, own: int | None) -> None:
        """Raise Refused if another class has this name or almost the same."""
        wanted = name_key(name)
        for each in self.all():
            if each.id != own and name_key(each.name) == wanted:
                raise Refused(409, f"There is a class '{display_name(each.name)}' already.")

    def _free_key(self, name: str) -> str:
        return self._free("key", name)

    def _free_name(self, name: str) -> str:
        return self._free("name", f"{name} (2)")

    def _free(self, column: str, text: str) -> str:
        taken = {row[0] for row in self.database.rows(f"SELECT {column} FROM classes")}
        number, tried = 1, text
        while tried in taken:
            number += 1
            tried = f"{text} ({number})"
        return tried


def checked_name(name: str) -> str:
    """The name without blanks around it. Raises Refused if people could not read it."""
    name = normalize_name(name)
    if not name or name.isspace():
        raise Refused(422, "A class needs a name.")
    if len(name) > LONGEST_NAME:
        raise Refused(422, f"The name has {len(name)} characters; {LONGEST_NAME} are the limit.")
    if not name.isprintable():
        raise Refused(422, "The name has characters that cannot be shown; leave them out.")
    return name
