"""The command that signs a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import say
from kedge.errors import require
from kedge.utils import signature


@dataclass(frozen=True)
class Sign:
    """Sign a model, so that others can check with 'kedge show MODEL --verify KEY.pub' whose it is.

    Writes MODEL.sig beside it: an ed25519 signature of the whole file. Keep the private key secret,
    and give others the public one on another way than the model.
    """

    model: Positional[Annotated[Path, arg(metavar="MODEL", help="Model, or any other file.")]]
    key: Annotated[Path, arg(metavar="KEY.pem")]
    """Private key in PEM, as this command or OpenSSL makes it."""
    new_key: FlagCreatePairsOff[bool] = False
    """Make the key first: KEY.pem, which only you can read, and KEY.pub for others."""

    def run(self, console: Console) -> None:
        require(self.model.is_file(), f"{self.model}: there is no file here.")
        if self.new_key:
            public = signature.make_key(self.key)
            say(console, f"{self.key}: new private key; its public key is {public}")
        signed = signature.sign(self.model, self.key)
        say(console, f"{signed}: signature of {self.model} by the key {self.key}")
