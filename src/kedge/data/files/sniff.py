"""Files that hold something else than the data their name promises."""

from __future__ import annotations

import re
from pathlib import Path

from kedge.errors import KedgeError


def reject_failed_download(path: Path) -> None:
    """Raise a `KedgeError` for an empty file, a Git LFS pointer or a web page."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError as error:
        raise KedgeError(f"{path}: cannot be read ({error.strerror}).") from None
    if not start:
        raise KedgeError(f"{path}: this file is empty; download it again.")
    if start.startswith(b"version https://git-lfs"):
        raise KedgeError(f"{path}: a Git LFS pointer, not the data; run 'git lfs pull'.")
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|error)", start, re.IGNORECASE):
        raise KedgeError(f"{path}: a web page, not the data; download it again.")
