"""Files that cannot be read, or are not what they should be, as errors for users.

Imports no package, for child processes that should start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular


def unreadable(path: str | Path, error: OSError) -> KedgeError:
    return KedgeError(f"{path}: cannot be read ({error.strerror}).")


def reject_failed_download(path: Path) -> None:
    """Raise a `KedgeError` for an empty file, a Git LFS pointer or a web page."""
    try:
        with open_regular(path) as file:
            start = file.read(512)
    except OSError as error:
        raise unreadable(path, error) from None
    if what := failed_download(start):
        raise KedgeError(f"{path}: {what}.")


def failed_download(start: bytes) -> str:
    """What a file with these first bytes is if it is no data at all; otherwise ""."""
    if not start:
        return "this file is empty; download it again"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the data; run 'git lfs pull'"
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|error)", start, re.IGNORECASE):
        return "a web page, not the data; download it again"
    return ""


@contextmanager
def damage_as_error(where: object) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into a `KedgeError`."""
    try:
        yield
    except KedgeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip's and bz2's have none
            raise unreadable(str(where), error) from None
        raise damaged(where, " ".join(str(error).split()) or type(error).__name__) from None


def damaged(where: object, reason: str) -> KedgeError:
    what = f"truncated, damaged or of another type ({reason[:120].rstrip('.')})"
    return KedgeError(f"{where}: {what}; download it again.")
