"""The file of tokens in the state folder, which the daemon reads and ``auditord token`` replaces.

The file holds no token: of each, a hash is enough to recognise it. Tokens are 256 random bits, beyond guessing, so
that one round of SHA-256 will do where passwords would need a slow hash. The file is replaced as a whole, and read
again once it has been: a revoked token is refused from the next request on.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from auditord_hookspecs import AuditordError
from auditord_hookspecs.folders import give_to_owner, replace_private

FILE: Final = "tokens.json"
PREFIX: Final = "auditord_"
"""The beginning of every token, by which scanners for leaked secrets find it."""


class StoredToken(msgspec.Struct, frozen=True):
    """A token without its secret.

    Args:
        token_id: public; stands in the token itself.
        name: of its owner; several may have one name, so that an old token can be followed by a new one.
        digest: SHA-256 of the secret part, in hexadecimal digits.
        roles: of its owner.
        created: the instant when it was made.
        expires: the instant from which on it is refused; None for never.
    """

    token_id: str
    name: str
    digest: str
    roles: tuple[str, ...]
    created: datetime
    expires: datetime | None = None

    def opens_with(self, secret: str) -> bool:
        """True if the secret part is right; takes equally long whatever it is."""
        return hmac.compare_digest(self.digest, _digest(secret))


class _Content(msgspec.Struct, frozen=True):
    tokens: tuple[StoredToken, ...] = ()
    version: int = 1


class TokenFileUnusable(AuditordError):
    """The file with the tokens cannot be read or written; no token is accepted until it can.

    Remedy:
        give tokens.json in state_dir to the service's user, or put it back from a backup.
    """


def new_token(name: str, roles: Sequence[str], created: datetime, expires: datetime | None) -> tuple[StoredToken, str]:
    """A new token, and its text, which is shown once."""
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return StoredToken(token_id, name, _digest(secret), tuple(roles), created, expires), f"{PREFIX}{token_id}_{secret}"


def take_apart(token: str) -> tuple[str, str] | None:
    """The public and the secret part of a token; None if it is another kind of token."""
    if not token.startswith(PREFIX):
        return None
    token_id, _, secret = token.removeprefix(PREFIX).partition("_")
    return token_id, secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenFile:
    """The tokens of a state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, StoredToken] = {}

    def tokens(self) -> Mapping[str, StoredToken]:
        """Every token by its id, as the file is now.

        Raises:
            TokenFileUnusable: it cannot be read.
        """
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
                self._tokens, self._seen = {each.token_id: each for each in content.tokens}, seen
        except FileNotFoundError:
            self._tokens, self._seen = {}, None
        except (OSError, msgspec.DecodeError) as error:
            raise TokenFileUnusable(f"the tokens in {self._path} cannot be read: {error}") from error
        return self._tokens

    def change(self, change: Callable[[Mapping[str, StoredToken]], Sequence[StoredToken]]) -> None:
        """Replace the tokens by what ``change`` makes of them; others who do so at the same time wait.

        Raises:
            TokenFileUnusable: the file cannot be read or written; it is as it was.
        """
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)  # the daemon may never have been started
            with _alone(self._path.with_suffix(".lock")):
                replace_private(self._path, msgspec.json.encode(_Content(tuple(change(self.tokens())))))
        except OSError as error:
            raise TokenFileUnusable(
                f"the tokens in {self._path} cannot be written: {error.strerror}: run this as the daemon's user, "
                f"who must be allowed to write to {folder}"
            ) from error


@contextmanager
def _alone(path: Path) -> Generator[None, None, None]:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
        give_to_owner(file.fileno(), path.parent)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
