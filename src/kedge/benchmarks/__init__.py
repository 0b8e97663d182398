"""The named benchmarks: where the images come from, and which classes play which role.

To add one, define a `Protocol` in a file of this folder and list it in `PROTOCOLS`.
"""

from kedge.benchmarks.base import Protocol
from kedge.benchmarks.drawings import DRAWINGS
from kedge.benchmarks.flowers import FLOWERS
from kedge.benchmarks.folder import FOLDER
from kedge.benchmarks.omniglot import OMNIGLOT
from kedge.benchmarks.photographs import PHOTOGRAPHS
from kedge.errors import require
from kedge.utils.text import display_name

__all__ = ["PROTOCOLS", "Protocol", "get_protocol"]

_ALL = (*DRAWINGS, *PHOTOGRAPHS, *FLOWERS, OMNIGLOT, FOLDER)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}


def get_protocol(name: str) -> Protocol:
    known = ", ".join(PROTOCOLS)
    require(
        name in PROTOCOLS,
        f"There is no protocol '{display_name(name)}'; the known ones are {known}.",
    )
    return PROTOCOLS[name]
