"""``auditord token``: make, list and revoke bearer tokens; beside a running daemon, which heeds them at once."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import click

from auditord_builtin.access.token_file import StoredToken, TokenFile, new_token
from auditord_hookspecs import CommandContext, pass_context
from auditord_hookspecs.config import parse_duration
from auditord_hookspecs.terminal import output_option, say, write_json
from auditord_hookspecs.wire import format_time

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


def _checked_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise click.BadParameter("letters, digits and . _ @ -, at most 100 of them")
    return name


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta | None:
    if text == "never":
        return None
    try:
        parsed = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or never") from error
    if not isinstance(parsed, timedelta) or parsed <= timedelta(0):
        raise click.BadParameter("a number with a unit, such as 90d, or never")
    return parsed


@click.group("token")
def token_command() -> None:
    """Make, list and revoke bearer tokens for the API.

    They open it where the configuration has an authenticator of kind tokens.
    """


@token_command.command("create")
@click.argument("name", callback=_checked_name)
@click.option("--role", "roles", multiple=True, required=True, help="What it is for, as access.roles says; repeatable.")
@click.option("--valid", default="365d", show_default=True, callback=_duration, help="For how long: 90d, or never.")
@output_option
@pass_context
def create_command(
    context: CommandContext, *, name: str, roles: Sequence[str], valid: timedelta | None, output: str
) -> None:
    """Make a token for NAME and print it, this once: only its hash is kept."""
    if unknown := [role for role in roles if role not in context.roles()]:
        raise click.BadParameter(f"there is no role '{unknown[0]}' (there are: {', '.join(sorted(context.roles()))})")
    now = context.now()
    stored, token = new_token(name, roles, now, None if valid is None else now + valid)
    TokenFile(context.state_dir).change(lambda tokens: [*tokens.values(), stored])
    if output == "json":
        write_json({**_shown(stored), "token": token})
        return
    say(f"token {stored.token_id} for {name}, {_until(stored)}; keep it, it is not shown again:", err=True)
    say(token)


@token_command.command("list")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@pass_context
def list_command(context: CommandContext, output: str) -> None:
    """List the tokens; what they say is not known."""
    tokens = sorted(TokenFile(context.state_dir).tokens().values(), key=lambda each: (each.name, each.created))
    if output == "json":
        write_json([_shown(each) for each in tokens])
        return
    for each in tokens:
        over = each.expires is not None and each.expires <= context.now()
        say(f"{each.token_id}  {each.name}  {','.join(each.roles)}  {'EXPIRED' if over else _until(each)}")


@token_command.command("revoke")
@click.argument("token_ids", nargs=-1, required=True)
@output_option
@pass_context
def revoke_command(context: CommandContext, token_ids: Sequence[str], output: str) -> None:
    """Revoke tokens by their ids; from the next request on they open nothing."""
    file = TokenFile(context.state_dir)
    if unknown := [each for each in token_ids if each not in file.tokens()]:
        raise click.BadParameter(f"there is no token {', '.join(unknown)}: see auditord token list")
    file.change(lambda tokens: [each for each in tokens.values() if each.token_id not in token_ids])
    write_json({"revoked": token_ids}) if output == "json" else say(f"revoked {', '.join(token_ids)}")


def _until(token: StoredToken) -> str:
    return "for ever" if token.expires is None else f"until {format_time(token.expires)}"


def _shown(token: StoredToken) -> Mapping[str, Any]:  # Any: JSON
    return {
        "id": token.token_id,
        "name": token.name,
        "roles": list(token.roles),
        "created": format_time(token.created),
        "expires": None if token.expires is None else format_time(token.expires),
    }
