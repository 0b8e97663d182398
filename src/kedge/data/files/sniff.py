"""What is often found in a file in place of the data that its name promises."""

from __future__ import annotations

import re
from pathlib import Path

from kedge.errors import KedgeError


def reject_failed_download(path: Path) -> None:
    """A `KedgeError` says what it is, and what to do."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError as error:
        raise KedgeError(f"{path}: cannot be read ({error.strerror}).") from None
    if not start:
        raise KedgeError(f"{path}: this file is empty; get it again.")
    if start.startswith(b"version https://git-lfs"):
        raise KedgeError(
            f"{path}: this is a Git LFS pointer and not the data; fetch them with 'git lfs pull'."
        )
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|error)", start, re.IGNORECASE):
        raise KedgeError(
            f"{path}: this is a web page and not the data; the download went wrong, get it again."
        )
