"""Secrets by reference: ``file:/path``, ``env:NAME`` and ``credential:name`` (systemd's ``LoadCredential=``)."""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from auditord_hookspecs import hookimpl

_log = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024
"""The largest secret. A larger file means that the path is wrong."""


def resolve(reference: str, environ: Mapping[str, str]) -> SecretStr | None:
    """Return the secret that a reference points to, or None if the text is not a reference.

    Raises:
        ValueError: the secret cannot be read. The message gives the reason and never quotes the secret.
    """
    scheme, colon, name = reference.partition(":")
    match scheme if colon else None:
        case "file":
            return _read(Path(name))
        case "env":
            if not (value := environ.get(name)):
                raise ValueError(f"the environment variable {name} is {'empty' if name in environ else 'not set'}")
            return SecretStr(value)
        case "credential":
            if not name or "/" in name:
                raise ValueError(f"'credential:{name}' needs the name of a systemd credential, without a path")
            if not (folder := environ.get("CREDENTIALS_DIRECTORY")):
                raise ValueError(f"'credential:{name}' is only available in a unit with LoadCredential={name}:/path")
            return _read(Path(folder, name))
        case _:
            return None


def _read(path: Path) -> SecretStr:
    if not path.is_absolute():
        raise ValueError(f"'file:{path}' needs an absolute path")
    try:
        with path.open("rb") as file:
            if (mode := os.fstat(file.fileno()).st_mode) & (stat.S_IRGRP | stat.S_IROTH):
                readers = "every user" if mode & stat.S_IROTH else "its group"
                _log.warning("the secret in %s can be read by %s: chmod 600 it", path, readers)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read the secret in {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} is too large for a secret (more than {MAX_BYTES} bytes)")
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"the secret in {path} is not UTF-8 text") from None  # the cause would quote the secret
    if not text:
        raise ValueError(f"the secret in {path} is empty")
    return SecretStr(text)


@hookimpl
def auditord_resolve_secret(reference: str) -> SecretStr | None:
    """Resolve references to files, environment variables and systemd credentials."""
    return resolve(reference, os.environ)
