"""Detached signatures of files: who they come from. A checksum shows damage only, since whoever
forges a model also computes its checksum.

    FILE       any file, such as a model: all of its bytes are signed
    FILE.sig   the 64 bytes of an ed25519 signature (RFC 8032)
    keys       PEM files: private ones as PKCS #8, without a passphrase; public ones as usual

OpenSSL reads and writes the same keys and signatures.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError, require
from kedge.utils.atomic_io import sibling, write_on_this_rank
from kedge.utils.regular_file import open_regular
from kedge.utils.text import pip_install

SUFFIX, LENGTH = ".sig", 64
MOST_KEY = 1 << 16  # bytes of a key file; PEM files of ed25519 keys have about 120
PUBLIC = ".pub"


def sign(file: Path, key: Path) -> Path:
    """The new file with the signature of `file` by a private key."""
    target = signature_of(file)
    require(not target.exists(), f"{target}: already exists; delete it to sign {file} again.")
    signature = _private_key(key).sign(_read(file, "file"))
    write_on_this_rank(target, lambda out: out.write(signature), replace=False)
    return target


def verify(file: Path, key: Path) -> None:
    """Raise KedgeError unless there is a signature of exactly this file by a public key's owner."""
    public, target, content = _public_key(key), signature_of(file), _read(file, "file")
    signature = _read(target, "signature", LENGTH + 1)
    require(
        len(signature) == LENGTH,
        f"{target}: not an ed25519 signature, which has {LENGTH} bytes; get it again from whoever "
        f"signed {file}.",
    )
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, content)
    except InvalidSignature:
        raise KedgeError(
            f"{file}: not trustworthy: {target} is no signature of this file by the key {key}. "
            "The file or the signature has changed, or another key has signed."
        ) from None


def make_key(path: Path) -> Path:
    """Write a new private key, which only its owner can read, and its public key beside it, whose
    path is returned."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    require(path.suffix != PUBLIC, f"{path}: a name in {PUBLIC} is for the public key.")
    public = sibling(path, path.stem + PUBLIC)
    for each in (path, public):
        require(not each.exists(), f"{each}: already exists; choose another name for the key.")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    known = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_on_this_rank(path, lambda out: out.write(secret), replace=False, mode=0o600)
    write_on_this_rank(public, lambda out: out.write(known), replace=False)
    return public


def signature_of(file: Path) -> Path:
    """Where the signature of a file is."""
    return sibling(file, file.name + SUFFIX)


def _private_key(path: Path) -> Any:
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key, content = None, _read(path, "key", MOST_KEY)
    try:
        with suppress(ValueError, UnsupportedAlgorithm):
            key = load_pem_private_key(content, None)
    except TypeError:
        raise KedgeError(
            f"{path}: this key has a passphrase, for which kedge does not ask; sign with OpenSSL "
            "(docs/model-file.md)."
        ) from None
    if isinstance(key, Ed25519PrivateKey):
        return key
    raise KedgeError(f"{path}: not a private ed25519 key in PEM; --new-key makes one.")


def _public_key(path: Path) -> Any:
    _check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key, content = None, _read(path, "key", MOST_KEY)
    with suppress(ValueError, UnsupportedAlgorithm):
        key = load_pem_public_key(content)
    if isinstance(key, Ed25519PublicKey):
        return key
    raise KedgeError(
        f"{path}: not a public ed25519 key in PEM; give the {PUBLIC} file of the key that signed."
    )


def _check_installed() -> None:
    found = importlib.util.find_spec("cryptography") is not None
    require(found, f"Signatures need cryptography: {pip_install('sign')}.")


def _read(path: Path, what: str, most: int = -1) -> bytes:
    """At most so many bytes of a plain file."""
    try:
        with open_regular(path) as file:
            return file.read(most)
    except FileNotFoundError:
        raise KedgeError(f"{path}: there is no {what} here.") from None
    except OSError as error:
        raise KedgeError(f"{path}: could not be read ({error.strerror}).") from None
