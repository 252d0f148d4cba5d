"""Types of options: instants, time zones, durations and filters."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.query import AllOf, Condition
from auditord_hookspecs.wire import parse_time
from auditord_hookspecs.zones import zone_named


class Instant(click.ParamType[datetime]):
    """A date (midnight in a zone) or a time with zone.

    Args:
        zone: the zone of dates; None returns their midnights without a zone.
        of_period: whether to refuse days on which no period can begin or end.
    """

    name = "time"

    def __init__(self, zone: tzinfo | None = UTC, *, of_period: bool = False) -> None:
        self._zone = zone
        self._of_period = of_period

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:  # Any: click's
        """Parse an instant, or fail with the allowed forms."""
        moment: datetime = value
        if not isinstance(value, datetime):
            try:
                moment = datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=self._zone)
            except ValueError:
                try:
                    moment = parse_time(value)
                except InvalidRecord:
                    forms = "a date (2026-01-31) nor a time with zone (2026-01-31T12:00:00Z)"
                    self.fail(f"'{value}' is neither {forms}", param, ctx)
        if not self._of_period:
            return moment
        from auditord.reporting.periods import check_day  # noqa: PLC0415 only for reports

        try:
            return check_day(moment)
        except ValueError as error:
            self.fail(str(error), param, ctx)


INSTANT = Instant()
PERIOD_INSTANT = Instant(of_period=True)
LOCAL_PERIOD_INSTANT = Instant(None, of_period=True)


class Zone(click.ParamType[str]):
    """The name of a time zone."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # Any: click's
        """Check that the zone exists."""
        try:
            zone_named(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


ZONE = Zone()


class Span(click.ParamType[timedelta]):
    """A duration in whole seconds, written as in the configuration."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:  # Any: click's
        """Parse a duration, or fail with the allowed forms."""
        from auditord_hookspecs.config import parse_duration  # noqa: PLC0415 imports pydantic

        try:
            span = parse_duration(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)
        if not isinstance(span, timedelta) or span < timedelta(0) or span % timedelta(seconds=1):
            self.fail(f"'{value}' is not a duration in whole seconds: write 90s, 30m, 12h or 7d", param, ctx)
        return span


SPAN = Span()


def split_pair(text: str, option: str, form: str) -> tuple[str, str]:
    """Split the value of an option at its first ``=``; what stands behind it may be empty.

    Args:
        text: the value.
        option: its name, for the error.
        form: such as ``LABEL=VALUE``, for the error.

    Raises:
        click.BadParameter: there is no ``=``, or nothing before it.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"'{text}' is not {form}", param_hint=option)
    return name, value


def parse_filters(text: str) -> Condition:
    """Return the condition of ``--where``, a query string of filters as of the API.

    Raises:
        click.BadParameter: it has other members, or cannot be read.
    """
    if not text:
        return AllOf()
    from auditord.web.api.records import read_where  # noqa: PLC0415 aiohttp, only for these filters
    from auditord.web.record_query import InvalidQuery  # noqa: PLC0415 the same

    try:
        return read_where(text)
    except InvalidQuery as error:
        raise click.BadParameter(str(error), param_hint="--where") from error
