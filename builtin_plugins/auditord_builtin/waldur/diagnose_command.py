"""``auditord waldur diagnose``."""

import click

from auditord_builtin.waldur.client import open_client
from auditord_builtin.waldur.commands import KIND, choose_instance, choose_source
from auditord_builtin.waldur.diagnosis import Verdict, diagnose
from auditord_builtin.waldur.errors import WaldurError
from auditord_builtin.waldur.usage_source import Source
from auditord_hookspecs import CommandContext, pass_context
from auditord_hookspecs.terminal import say


class Unfit(WaldurError):
    """Something must be mended before amounts can be right."""


@click.command("diagnose")
@choose_instance
@choose_source
@pass_context
def diagnose_command(context: CommandContext, instance: str | None, source: str) -> None:
    """Look at everything between the records and Waldur; nothing is written.

    One line each: ok, note (amounts may lack something) or FAIL (they will). The exit code is 1 if anything fails.
    """
    name = context.chosen(KIND, instance)

    async def look() -> None:
        failed = 0
        async with context.instance(name, dry_run=True) as (config, plugin_context):
            # A person waits for the answer: a server that is away is named at once.
            impatient = config.model_copy(update={"retry_for": config.retry_for * 0})
            async with open_client(impatient, plugin_context.http, show=say) as client:
                async for finding in diagnose(config, plugin_context, client, sacct=source == Source.SACCT.value):
                    failed += finding.verdict is Verdict.FAIL
                    say(str(finding))
        if failed:
            raise Unfit(f"{failed} of the above must be mended")

    context.run(look)
