"""Compare the records here and at a hub, by site and day.

A sender ``remote`` forwards the records. This plugin reports to the hub how many there should be, which the hub shows
for all its sites.
"""

import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from prometheus_client import Gauge
from prometheus_client.registry import Collector
from pydantic import Field

from auditord.client import AsyncClient
from auditord.client.site_reports import MOST_DAYS, SiteReport, day_sums, sums_query
from auditord_hookspecs import AuditordError, PluginConfig, PluginContext, PluginKind, Secret
from auditord_hookspecs.sources import ServerUrl, TlsFiles
from auditord_hookspecs.wording import counted, format_list

_TIMEOUT_SECONDS: Final = 30
_SHOWN: Final = 20
_LABELS: Final = ("task",)

_MISSING: Final = Gauge(
    "auditord_hub_missing_records", "Records that are stored here and not at the hub.", _LABELS, registry=None
)
_EXTRA: Final = Gauge(
    "auditord_hub_extra_records", "Records that are stored at the hub and not here.", _LABELS, registry=None
)

INSTRUMENTS: Final[Iterable[Collector]] = (_MISSING, _EXTRA)


class SiteReportConfig(PluginConfig):
    """Reports each day's sums to a hub, which compares them with its own records."""

    url: ServerUrl = Field(description="The URL of the hub, an auditord: http://host:port or https://host:port.")
    token: Secret | None = Field(default=None, description="The bearer token, as a reference to a secret.")
    tls: TlsFiles = Field(default_factory=TlsFiles, description="CA and client certificate for https.")
    days: int = Field(
        default=35,
        ge=1,
        le=3_660,
        description="How many days to report, counted back from today; a month has 31 at most.",
    )
    reporter: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="This daemon's name at the hub; default: the host name.",
    )


async def report(config: SiteReportConfig, context: PluginContext) -> None:
    """Report once. Warn if the hub differs for past days. Today's records may still be in flight.

    Raises:
        AuditordError: there are more days and sites than one report can contain.
        ClientError: the hub does not answer, or refuses the report.
    """
    today = context.now().date()
    first_day = today - timedelta(days=config.days - 1)
    days = day_sums(await context.records.aggregate(sums_query(first_day)))
    if len(days) > MOST_DAYS:
        raise AuditordError(f"a report has at most {MOST_DAYS:,} days of sites: lower days")
    if context.dry_run:
        records = counted(sum(each.records for each in days), "record")
        context.show(f"would report {records} on {counted(len(days), 'day of a site', 'days of sites')}")
        return
    token = None if config.token is None else config.token.get_secret_value()
    async with AsyncClient(config.url, tls=config.tls, token=token, timeout=_TIMEOUT_SECONDS) as client:
        answer = await client.report_site(
            config.reporter or socket.gethostname(), SiteReport(context.now(), first_day, days)
        )
    _MISSING.labels(context.instance).set(answer.missing)
    _EXTRA.labels(context.instance).set(answer.extra)
    differing: list[str] = []
    for day in answer.differing:
        here, at_hub = (
            f"{counted(each.records, 'record')} and {counted(each.core_seconds, 'core second')}"
            for each in (day.reported, day.stored)
        )
        if day.stored.day < today:
            place = f"{day.stored.site or '(no site)'} on {day.stored.day}"
            differing.append(f"{place}: {here} here, {at_hub} at the hub")
    if differing != (context.state or []):  # only log changes, not the same differences every minute
        if not differing:
            context.log.info("the hub has all records of the days before today")
        else:
            lacks = counted(answer.missing, "record")
            remedy = f"the hub lacks {lacks} in total: see the queue and the quarantine"
            context.log.warning("%s; %s", format_list(differing, _SHOWN, "; "), remedy)
        await context.save_state(differing)


KIND: Final = PluginKind(
    name="site_report",
    config=SiteReportConfig,
    run=report,
    interval=timedelta(minutes=1),
    timeout=timedelta(minutes=5),
    needs=lambda _: ("Cores",),
    effect=lambda config: f"reports the sums of {counted(config.days, 'day')} to {config.url}",
)
