"""Who may do what: roles, tokens, sessions, and requests that come from other sites.

On loopback everybody who can reach the server may do everything, unless tokens are wanted. Browsers
are told apart from sites that use them: the Host header must be one of ours (DNS rebinding),
unsafe methods need a header that a foreign page cannot send without asking first, and nothing is
ever allowed across origins.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kedge.errors import KedgeError, require
from kedge.serve.limits import Refused
from kedge.utils.atomic_io import write_text_atomically

ROLES = ("ask", "teach", "improve")  # each may do what those before it may
FILE = "tokens.json"
PREFIX = "kedge_"
SESSION_SECONDS = 30 * 24 * 3600
HEADER = "x-kedge"  # that unsafe requests need
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    # The page shows thumbnails of this server and previews of files that were just chosen.
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Tokens:
    """The hashes of the tokens of a project, and the key that signs sessions."""

    hashes: dict[str, str]  # by role
    key: str

    @classmethod
    def load(cls, folder: Path) -> Tokens | None:
        """None if the project has no tokens."""
        path = folder / FILE
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            return cls({role: str(about["tokens"][role]) for role in ROLES}, str(about["key"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise KedgeError(
                f"{path}: not readable as the tokens of a project; '--new-tokens' makes others."
            ) from None

    @classmethod
    def make(cls, folder: Path) -> tuple[Tokens, dict[str, str]]:
        """New tokens, of which only hashes are stored; those of before are void."""
        words = {role: f"{PREFIX}{role}_{secrets.token_urlsafe(32)}" for role in ROLES}
        hashes = {role: _hash(word) for role, word in words.items()}
        tokens, path = cls(hashes, secrets.token_hex(32)), folder / FILE
        if not path.exists():
            path.touch(0o600)
        write_text_atomically(path, json.dumps({"tokens": hashes, "key": tokens.key}))
        path.chmod(0o600)
        return tokens, words

    def role_of(self, token: str) -> str | None:
        """The role of a token; takes the same time for each wrong one."""
        given, found = _hash(token), None
        for role, expected in self.hashes.items():
            if hmac.compare_digest(given, expected):
                found = role
        return found

    def session(self, role: str) -> str:
        """A signed text that says who may do what until when."""
        text = f"{role}.{int(time.time()) + SESSION_SECONDS}"
        return f"{text}.{self._sign(text)}"

    def role_of_session(self, session: str) -> str | None:
        text, _, signature = session.rpartition(".")
        if not hmac.compare_digest(self._sign(text).encode(), signature.encode()):
            return None
        role, _, until = text.partition(".")
        return role if role in ROLES and int(until) > time.time() else None

    def _sign(self, text: str) -> str:
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()

    @property
    def cookie(self) -> str:
        """The name of the cookie: those of a host's other ports are sent here, too."""
        return f"kedge_session_{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"


def _hash(token: str) -> str:
    # Tokens are 256 random bits, which need no slow hash.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


@dataclass(frozen=True)
class Listen:
    """Where the server listens, and under which names it may be called."""

    host: str
    port: int
    names: tuple[str, ...] = ()  # further ones

    @classmethod
    def parse(cls, text: str, names: Iterable[str] = ()) -> Listen:
        host, colon, port = text.rpartition(":")
        valid = bool(colon and host) and port.isdecimal() and int(port) < 1 << 16
        require(valid, f"--listen {text}: give an address and a port, such as 127.0.0.1:8600.")
        host = host.removeprefix("[").removesuffix("]")
        return cls(host, int(port), tuple(name.lower() for name in names))

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or _is_loopback(self.host)

    def allows(self, host: str) -> bool:
        """Whether a Host header is ours. A foreign name would be another site's that points here.

        Numbers cannot be anybody's but the address itself.
        """
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        if name == "localhost" or name in self.names:
            return True
        if self.is_loopback:
            return _is_loopback(name)
        return _is_address(name) or name in (self.host.lower(), *_own_names())


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname().lower()
    return name, f"{name}.local"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text).is_loopback


def check_origin(method: str, path: str, headers: dict[str, str], listen: Listen) -> None:
    """Raise Refused for requests that another site has made a browser send."""
    host = headers.get("host", "")
    if not listen.allows(host):
        raise Refused(
            421, "This server does not answer to that name; give it with --name, or use localhost."
        )
    site = headers.get("sec-fetch-site", "same-origin")
    unsafe = method not in SAFE_METHODS
    if site not in ("same-origin", "none") and (unsafe or path.startswith("/api/")):
        raise Refused(403, "Requests of other sites are refused.")
    if not unsafe:
        return
    if headers.get(HEADER) != "1":
        raise Refused(403, "Requests that change something need the header 'X-Kedge: 1'.")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Refused(403, "Requests of other sites are refused.")


def check_role(role: str | None, needed: str) -> None:
    if role is None:
        raise Refused(401, "Give a token: 'Authorization: Bearer TOKEN', or sign in on the page.")
    if ROLES.index(role) < ROLES.index(needed):
        raise Refused(403, f"This needs the role '{needed}', and yours is '{role}'.")
