"""The command that serves a project: a page in the browser, and an HTTP interface."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from kedge.cli.arguments import load_pytorch, option, say
from kedge.errors import KedgeError
from kedge.utils.text import pip_install

if TYPE_CHECKING:
    from kedge.serve.security import Listen, Tokens

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@dataclass(frozen=True)
class Serve:
    """Serve a page on which people teach classes with pictures, ask, improve and forget.

    Programs use the same through HTTP. FOLDER holds the project: its pictures, the versions of its
    model and a database. The first start makes it: from a model file, from a folder of pictures,
    or empty, with a network pretrained on photographs that knows no class. A server that was
    stopped or killed continues with the same command.

    Only this machine can reach the server, unless --listen says otherwise; then each request needs
    a token.
    """

    folder: Positional[
        Annotated[Path, arg(metavar="FOLDER", help="The folder of the project, or a new one.")]
    ]
    model: Annotated[
        Path | None,
        option("MODEL", "the pretrained network", "Model file that a new project starts from."),
    ] = None
    pictures: Annotated[
        str | None,
        option(
            "DATA",
            "none",
            "A folder with one sub-folder of pictures per class, to be taught first; pictures that "
            "the project has already are left out.",
        ),
    ] = None
    listen: str = "127.0.0.1:8600"
    """Address and port. With 0.0.0.0 other machines can reach the server."""
    name: Annotated[
        UseAppendAction[tuple[str, ...]],
        option(
            "NAME",
            "those of this machine",
            "A further host name under which browsers reach the server, through a proxy, say; a "
            "token is needed then. May be repeated.",
        ),
    ] = ()
    tokens: Annotated[
        FlagCreatePairsOff[bool],
        arg(help="Ask for a token on this machine, too, as where several people use it."),
    ] = False
    new_tokens: Annotated[
        FlagCreatePairsOff[bool],
        arg(help="Make new tokens and print them; those of before are no longer valid."),
    ] = False
    quota: str = "20GB"
    """How much the project may take on disk."""
    rate: int = 0
    """Pictures that one client may send in a minute; 0: as many as the machine can take."""
    log: Literal["text", "json"] = "text"
    """One line of log on standard error for each request that changes something or fails."""

    def run(self, console: Console) -> None:
        if find_spec("fastapi") is None or find_spec("uvicorn") is None:
            raise KedgeError(f"The service needs further packages: {pip_install('serve')}.")
        from kedge.serve.limits import Limits
        from kedge.serve.security import Listen

        limits = Limits(quota=parse_size(self.quota), pictures_per_minute=self.rate)
        listen = Listen.parse(self.listen, self.name)
        images = [] if self.pictures is None else [self.pictures]
        load_pytorch(*([] if self.model is None else [self.model]), images=images, decode=True)
        from kedge.serve.importing import import_pictures
        from kedge.serve.monitoring import set_up_logs
        from kedge.serve.project import check_folder
        from kedge.serve.server import serve
        from kedge.serve.service import Service, Settings
        from kedge.utils.atomic_io import make_folder

        check_folder(self.folder, self.model)
        make_folder(self.folder)
        set_up_logs(self.log)

        def ready(service: Service, socket: object) -> None:
            if self.pictures is not None:
                import_pictures(service, self.pictures)
            say(console, f"{self.folder}: the page is at {_address(listen)} (Ctrl-C stops)")
            sys.stdout.flush()

        def settings() -> Settings:
            return Settings(listen, self._tokens(console, listen), limits)

        serve(self.folder, listen, settings, self.model, ready)

    def _tokens(self, console: Console, listen: Listen) -> Tokens | None:
        """The tokens that requests need, made and printed if there are none yet."""
        from kedge.serve.security import Tokens

        if listen.is_loopback and not (self.tokens or self.new_tokens or self.name):
            return None
        tokens = None if self.new_tokens else Tokens.load(self.folder)
        if tokens is None:
            tokens, words = Tokens.make(self.folder)
            say(console, "Links with tokens, not shown again ('--new-tokens' makes others):")
            for role, word in words.items():
                say(console, f"  {role:8} {_address(listen)}#token={word}")
        return tokens


def _address(listen: Listen) -> str:
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(listen.host, listen.host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{listen.port}/"


def parse_size(text: str) -> int:
    """'20GB' in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?b?)", text.strip().lower())
    unit = "" if match is None else match[2]
    unit = unit if not unit or unit.endswith("b") else f"{unit}b"
    unit = "" if unit == "b" else unit
    if match is None or not 0 < float(match[1]) * UNITS[unit] < 1 << 60:
        raise KedgeError(f"--quota is '{text}': give a size such as 20GB.")
    return int(float(match[1]) * UNITS[unit])
