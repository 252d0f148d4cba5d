"""``auditord waldur load-history``."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TextIO
from uuid import UUID

import click
from pydantic import SecretStr

from auditord_builtin.waldur.commands import KIND, choose_source
from auditord_builtin.waldur.history import History, load_history
from auditord_builtin.waldur.usage_source import Source
from auditord_hookspecs import AuditordError, CommandContext, pass_context
from auditord_hookspecs.config import parse_duration
from auditord_hookspecs.terminal import say

TOKEN_VARIABLE = "WALDUR_USER_TOKEN"  # noqa: S105 the name of a variable


def _duration(_: click.Context, __: click.Parameter, value: str) -> timedelta:
    """Read ``5s`` or ``1m``; the forms of ISO 8601 are for files."""
    try:
        duration = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not isinstance(duration, timedelta):
        raise click.BadParameter(f"{value!r} is no duration such as 5s")
    return duration


_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.command("load-history")
@click.option("--start-date", type=_DAY, required=True, help="A day of the first month; whole months are loaded.")
@click.option("--end-date", type=_DAY, required=True, help="A day of the last month.")
@choose_source
@click.option("--offering-uuid", type=click.UUID, help="Which offering, if several are configured.")
@click.option("--instance", metavar="NAME", help="The same by its name in the configuration.")
@click.option(
    "--user-token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    help="The token of a user of staff instead of the configured one. Others on this machine see it: better the"
    " variable, or a file.",
)
@click.option("--token-file", type=click.File(), help="The same token in a file, or - for standard input.")
@click.option("--dry-run", is_flag=True, help="Read and compute everything, print the requests, write nothing.")
@click.option(
    "--delay", callback=_duration, default="0s", show_default=True, help="A pause between months, such as 5s."
)
@click.option(
    "--resource",
    "--resource-backend-id",
    "resources",
    multiple=True,
    metavar="ACCOUNT",
    help="Only this one; may be repeated.",
)
@click.option("--allow-decrease", is_flag=True, help="Let amounts fall. Records must still be up to date.")
@click.option(
    "--reconcile-stale",
    is_flag=True,
    help="Set what Waldur has of accounts and users without any usage in the month to zero, also where nobody has any.",
)
@click.option("--skip-user-usage", is_flag=True, help="Load totals, and no amounts of users.")
@click.option("--no-staff-check", is_flag=True, help="Try with any token: Waldur takes some months from others, too.")
@pass_context
def load_history_command(
    context: CommandContext,
    *,
    start_date: datetime,
    end_date: datetime,
    source: str,
    offering_uuid: UUID | None,
    instance: str | None,
    user_token: str | None,
    token_file: TextIO | None,
    dry_run: bool,
    delay: timedelta,
    resources: Sequence[str],
    allow_decrease: bool,
    reconcile_stale: bool,
    skip_user_usage: bool,
    no_staff_check: bool,
) -> None:
    """Load the usage of past months into Waldur, with the token of a user of staff.

    Amounts are absolute: loading a month again changes nothing, and loads what failed. The exit code is 1 if a month
    is not complete, 4 if the offering has no resource.
    """
    wanted = History(
        start_date.date(),
        end_date.date(),
        Source(source),
        resources,
        delay,
        allow_decrease=allow_decrease,
        reconcile_stale=reconcile_stale,
        users=not skip_user_usage,
        staff_check=not no_staff_check,
    )
    token = _token(user_token, token_file)
    names = [context.chosen(KIND, instance)] if offering_uuid is None or instance else context.instances(KIND)

    async def load() -> None:
        name = names[0] if offering_uuid is None else await _of_offering(context, names, offering_uuid)
        async with context.instance(name, dry_run=dry_run) as (config, plugin_context):
            loading = config if token is None else config.model_copy(update={"waldur_api_token": token})
            await load_history(loading, plugin_context, wanted, say)

    context.run(load)


def _token(user_token: str | None, token_file: TextIO | None) -> SecretStr | None:
    token = user_token if token_file is None else token_file.read().strip()
    if token == "":
        raise click.UsageError("the token is empty")
    return None if token is None else SecretStr(token)


async def _of_offering(context: CommandContext, names: Sequence[str], offering: UUID) -> str:
    """The instance of an offering.

    Raises:
        AuditordError: none of them is, or several.
    """
    found: list[str] = []
    for name in names:
        async with context.instance(name, dry_run=True) as (config, _):
            found += [name] if config.waldur_offering_uuid == offering else []
    if len(found) != 1:
        which = f"several report to it ({', '.join(found)}): give --instance" if found else "no instance reports to it"
        raise AuditordError(f"offering {offering}: {which}")
    return found[0]
