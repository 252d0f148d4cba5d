"""Bearer tokens: the authenticator ``tokens``, their file in the state folder, and ``auditord token``."""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from auditord_hookspecs import AuditordError, CommandContext, InstanceConfig, access, pass_context
from auditord_hookspecs.checks import ENDS_SOON, Finding, Severity
from auditord_hookspecs.config import parse_duration
from auditord_hookspecs.folders import give_to_owner, replace_private
from auditord_hookspecs.terminal import output_option, say, write_json
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import counted

FILE: Final = "tokens.json"
PREFIX: Final = "auditord_"
"""The prefix of every token, so that scanners find leaked ones."""


class StoredToken(msgspec.Struct, frozen=True):
    """A token without its secret.

    Args:
        token_id: the public part of the token.
        name: the owner's name. Several tokens can have the same name, so that a new one can replace an old one.
        digest: SHA-256 of the secret part, in hexadecimal.
        expires: the time from which the token is refused; None: never.
    """

    token_id: str
    name: str
    digest: str
    roles: tuple[str, ...]
    created: datetime
    expires: datetime | None = None

    def opens_with(self, secret: str) -> bool:
        """Return True if the secret part matches, comparing in constant time."""
        return hmac.compare_digest(self.digest, _digest(secret))


class _Content(msgspec.Struct, frozen=True):
    tokens: tuple[StoredToken, ...] = ()
    version: int = 1


class TokenFileUnusable(AuditordError):
    """The file with the tokens cannot be read or written. While it cannot be read, no token is accepted.

    Remedy:
        make the service's user the owner of tokens.json in state_dir, or restore it from a backup.
    """


def new_token(name: str, roles: Sequence[str], created: datetime, expires: datetime | None) -> tuple[StoredToken, str]:
    """Return a new token and its text, which is shown only once."""
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return StoredToken(token_id, name, _digest(secret), tuple(roles), created, expires), f"{PREFIX}{token_id}_{secret}"


def take_apart(token: str) -> tuple[str, str] | None:
    """Split a token into its public and secret parts. Return None for other kinds of tokens."""
    if not token.startswith(PREFIX):
        return None
    token_id, _, secret = token.removeprefix(PREFIX).partition("_")
    return token_id, secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenFile:
    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, StoredToken] = {}

    def tokens(self) -> Mapping[str, StoredToken]:
        """Return the stored tokens by id. The file is read again if it has changed.

        Raises:
            TokenFileUnusable: the file cannot be read.
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
            remedy = ": run this as root or as the daemon's user" if isinstance(error, PermissionError) else ""
            raise TokenFileUnusable(f"the tokens in {self._path} cannot be read: {error}{remedy}") from error
        return self._tokens

    def change(self, change: Callable[[Mapping[str, StoredToken]], Sequence[StoredToken]]) -> None:
        """Replace the tokens with the result of ``change``, under a lock.

        Raises:
            TokenFileUnusable: the file cannot be read or written. It is unchanged.
        """
        folder = self._path.parent
        try:
            # The folder does not exist before the daemon's first start.
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(lock, "wb") as file:
                give_to_owner(file.fileno(), folder)
                fcntl.flock(file, fcntl.LOCK_EX)
                replace_private(self._path, msgspec.json.encode(_Content(tuple(change(self.tokens())))))
        except OSError as error:
            raise TokenFileUnusable(
                f"the tokens in {self._path} cannot be written: {error.strerror}: run this as the daemon's user, "
                f"who must be allowed to write to {folder}"
            ) from error


_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class TokensConfig(InstanceConfig):
    """Tokens of ``auditord token create``. Each token has its own roles."""


def open_tokens(
    config: TokensConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Open the authenticator. Each request checks the file for changes, so a revoked token is refused at once."""
    del config
    file = TokenFile(context.state_dir)

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        parts = None if credentials.token is None else take_apart(credentials.token)
        if parts is None:
            return None
        token_id, secret = parts
        stored = file.tokens().get(token_id)
        if stored is None or not stored.opens_with(secret):
            raise access.AccessRefused("an unknown or revoked token")
        if stored.expires is not None and stored.expires <= context.now():
            raise access.AccessRefused(f"token {token_id} of {stored.name} has expired")
        return access.Identity(stored.name, stored.roles, stored.name)

    return nullcontext(authenticate)


async def check(config: TokensConfig, context: access.AuthenticatorContext) -> AsyncGenerator[Finding, None]:
    """Report whether any token exists and, for each owner, whether the last one has expired or expires soon."""
    del config
    last: dict[str, StoredToken] = {}
    stored = TokenFile(context.state_dir).tokens().values()
    for each in sorted(stored, key=lambda token: token.expires or _NEVER):
        last[each.name] = each
    if not last:
        text = "no token exists: every request with a token is refused"
        remedy = f"auditord token create NAME --role ROLE, or restore {FILE} from a backup to the state folder"
        yield Finding(Severity.WARNING, "tokens", text, remedy)
    for name, token in sorted(last.items()):
        subject, left = f"token of {name}", None if token.expires is None else token.expires - context.now()
        remedy = f"auditord token create {name}, give it to the owner, then auditord token revoke {token.token_id}"
        if left is None:
            yield Finding(Severity.OK, subject, f"{token.token_id} does not expire")
        elif left <= timedelta(0):
            text = (
                f"{token.token_id} expired at {token.expires:%Y-%m-%d %H:%M} UTC: clients that still use it are refused"
            )
            yield Finding(Severity.WARNING, subject, text, f"{remedy}; revoke it if it is no longer used")
        else:
            severity = Severity.WARNING if left < ENDS_SOON else Severity.OK
            text = (
                f"{token.token_id} is valid until {token.expires:%Y-%m-%d %H:%M} UTC, for {counted(left.days, 'day')}"
            )
            yield Finding(severity, subject, text, remedy if severity is Severity.WARNING else "")


KIND = access.AuthenticatorKind(
    name="tokens", config=TokensConfig, open=open_tokens, roles=lambda _: (), names_users=lambda _: True, check=check
)


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


def _check_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise click.BadParameter("letters, digits and . _ @ -, at most 100 of them")
    return name


def _parse_validity(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta | None:
    if text == "never":
        return None
    try:
        parsed = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or never") from error
    if not isinstance(parsed, timedelta) or parsed <= timedelta(0):
        raise click.BadParameter("a number with a unit, such as 90d, or never")
    return parsed


def _check_page(_context: click.Context, _parameter: click.Parameter, url: str | None) -> str | None:
    if url is not None and not re.fullmatch(r"https?://[^/\s#?]+[^\s#?]*", url):
        raise click.BadParameter("the address of the page, such as https://auditord.example.org")
    return None if url is None else url.rstrip("/")


@click.group("token")
def token_command() -> None:
    """Make, list and revoke bearer tokens for the API.

    The API accepts them if the configuration has an authenticator of kind tokens.
    """


@token_command.command("create")
@click.argument("name", callback=_check_name)
@click.option("--role", "roles", multiple=True, required=True, help="A role, as in access.roles; repeatable.")
@click.option(
    "--valid", default="365d", show_default=True, callback=_parse_validity, help="Validity, such as 90d, or never."
)
@click.option(
    "--link",
    "page",
    metavar="URL",
    callback=_check_page,
    help="Print a link that logs a person in, instead of the token; URL is the page's address.",
)
@output_option
@pass_context
def create_command(
    context: CommandContext,
    *,
    name: str,
    roles: Sequence[str],
    valid: timedelta | None,
    page: str | None,
    output: str,
) -> None:
    """Make a token for NAME and print it. It cannot be printed again: only its hash is kept."""
    if unknown := [role for role in roles if role not in context.roles()]:
        raise click.BadParameter(f"there is no role '{unknown[0]}' (there are: {', '.join(sorted(context.roles()))})")
    now = context.now()
    stored, token = new_token(name, roles, now, None if valid is None else now + valid)
    TokenFile(context.state_dir).change(lambda tokens: [*tokens.values(), stored])
    # The part behind # stays in the browser: neither servers nor their logs see it.
    link = {} if page is None else {"link": f"{page}/login#token={token}"}
    if output == "json":
        write_json({**_to_json(stored), "token": token, **link})
        return
    what = "token" if page is None else "login link, which is as secret as a password, with token"
    say(f"{what} {stored.token_id} for {name}, {_until(stored)}; keep it, it is not shown again:", err=True)
    say(link.get("link", token))


@token_command.command("list")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@pass_context
def list_command(context: CommandContext, output: str) -> None:
    """List the tokens, without their secrets."""
    tokens = sorted(TokenFile(context.state_dir).tokens().values(), key=lambda each: (each.name, each.created))
    if output == "json":
        write_json([_to_json(each) for each in tokens])
        return
    rows = [("id", "name", "roles", "validity")] if tokens else []
    for each in tokens:
        over = each.expires is not None and each.expires <= context.now()
        rows.append((each.token_id, each.name, ",".join(each.roles), "EXPIRED" if over else _until(each)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@token_command.command("revoke")
@click.argument("token_ids", nargs=-1, required=True)
@output_option
@pass_context
def revoke_command(context: CommandContext, token_ids: Sequence[str], output: str) -> None:
    """Revoke tokens by their ids. Later requests with them are refused."""
    file = TokenFile(context.state_dir)
    if unknown := [each for each in token_ids if each not in file.tokens()]:
        raise click.BadParameter(f"there is no token {', '.join(unknown)}: see auditord token list")
    file.change(lambda tokens: [each for each in tokens.values() if each.token_id not in token_ids])
    write_json({"revoked": token_ids}) if output == "json" else say(f"revoked {', '.join(token_ids)}")


def _until(token: StoredToken) -> str:
    return "never expires" if token.expires is None else f"until {format_time(token.expires.replace(microsecond=0))}"


def _to_json(token: StoredToken) -> Mapping[str, Any]:  # Any: JSON
    return {
        "id": token.token_id,
        "name": token.name,
        "roles": list(token.roles),
        "created": format_time(token.created),
        "expires": None if token.expires is None else format_time(token.expires),
    }
