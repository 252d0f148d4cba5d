"""Loading the usage of months that are over into Waldur, whole months at a time.

Amounts are absolute, so loading again changes nothing: whatever failed is mended by the same call. The lines that are
printed are those of the guide to Waldur's site agent, for people and scripts who know them.
"""

from collections.abc import Mapping, Sequence

from auditord_builtin.waldur.client import Clock, WaldurClient, open_client
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.history import History, NotLoaded
from auditord_builtin.waldur.month_loading import MonthLoading, Say
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.summary import NothingReported
from auditord_hookspecs import PluginContext


async def load_history(
    config: WaldurConfig, context: PluginContext, wanted: History, say: Say, *, clock: Clock | None = None
) -> None:
    """Load month after month; what fails in one does not keep the others out.

    Args:
        config: which offering; its token should be one of staff.
        context: where the records are, or where sacct runs; for a dry run, requests that would write are only said.
        wanted: which months.
        say: gets each line of progress.
        clock: time and chance, for tests.

    Raises:
        NotLoaded: something is not in Waldur; what it is has been said.
        NothingReported: the offering has no resource.
        AuditordError: nothing could be loaded at all.
    """
    months = wanted.months(config, context.now())
    say("🚀 Starting historical usage loading")
    time = clock or Clock()
    async with open_client(config, show=say if context.dry_run else None, clock=time) as client:
        if wanted.staff_check:
            await _check_staff(client, say)
        say(f"📊 Will process {len(months)} months of data")
        loading = MonthLoading(config, context, wanted, client, say)
        await loading.begin()
        for number, month in enumerate(months):
            if number:
                await time.sleep(wanted.delay.total_seconds())
            say(f"📅 Processing month {number + 1}/{len(months)}: {month.name}")
            await loading.load(month)
            if loading.hopeless:
                loading.give_up(months[number + 1 :])
                break
    if context.dry_run:
        say("This was a dry run: nothing was written")
    if not loading.resources:
        raise NothingReported("the offering has no resource that is to be loaded: is it the right one?")
    _conclude(wanted, months, loading.failed, say)


async def _check_staff(client: WaldurClient, say: Say) -> None:
    # A provider's token may not bill months that are over: each of its requests would be refused.
    if not (await client.me()).is_staff:
        say("❌ Historical usage loading requires staff user privileges")
        raise NotLoaded(
            "the token is not one of staff: give one with --token-file or WALDUR_USER_TOKEN, or try all the same with"
            " --no-staff-check"
        )


def _conclude(wanted: History, months: Sequence[BillingMonth], failed: Mapping[str, Sequence[str]], say: Say) -> None:
    """Say how it ended.

    Raises:
        NotLoaded: not well.
    """
    if not failed:
        say("🎉 Historical usage loading completed successfully!")
        say(f"Processed {len(months)} months from {wanted.start} to {wanted.end}")
        return
    say(f"❌ Historical usage loading failed for {len(failed)} of {len(months)} months:")
    for name, reasons in failed.items():
        say(f"   {name}: {reasons[0]}" + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""))
    raise NotLoaded(f"{', '.join(failed)} not complete in Waldur; the same call again loads what is missing")
