"""The named benchmarks: where the images come from, and which classes play which role.

To add one, define a `Protocol` in a file of this folder and list it in `PROTOCOLS`.
"""

from kedge.benchmarks.base import Protocol
from kedge.benchmarks.cifar_fs import CIFAR_FS
from kedge.benchmarks.drawings import DRAWINGS
from kedge.benchmarks.folder import FOLDER
from kedge.benchmarks.imagenet import IMAGENET
from kedge.benchmarks.omniglot import OMNIGLOT
from kedge.benchmarks.tiny_imagenet import TINY_IMAGENET
from kedge.errors import KedgeError

__all__ = ["PROTOCOLS", "Protocol", "get_protocol"]

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (*DRAWINGS, *IMAGENET, *TINY_IMAGENET, CIFAR_FS, OMNIGLOT, FOLDER)
}


def get_protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        raise KedgeError(f"There is no protocol '{name}'; the known ones are {known}.")
    return PROTOCOLS[name]
