"""The source of the figures: the record store, or Slurm's own accounting."""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.figures import AccountUsage, month_figures
from auditord_builtin.waldur.freshness import covered_since, staleness
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.sacct_figures import sacct_month_figures
from auditord_hookspecs import PluginContext


class Source(Enum):
    """Its name on the command line."""

    STORE = "store"
    SACCT = "sacct"


class FigureSource:
    """The figures of an instance's accounts.

    Args:
        config: which accounts and components.
        context: where the records are, or where sacct runs.
        source: which of the two.

    Attributes:
        now: the present instant, one for all that is asked.
        as_of: the instant up to which running jobs count. sacct knows the ends of all jobs, records only a while later.
    """

    def __init__(self, config: WaldurConfig, context: PluginContext, source: Source) -> None:
        self._config, self._context, self._source = config, context, source
        self.now: datetime = context.now()
        self.as_of = self.now - config.lag if source is Source.STORE else self.now

    async def month(self, month: BillingMonth) -> Mapping[str, AccountUsage]:
        """The usage of every account that has any, by the case-folded account.

        Raises:
            AuditordError: it cannot be had.
        """
        if self._source is Source.SACCT:
            return await sacct_month_figures(self._config, self._context, month, as_of=self.as_of)
        return await month_figures(self._config, self._context.records, month, as_of=self.as_of)

    async def covers(self, month: BillingMonth) -> bool:
        """True if the figures of a month are believed where they say that an account or a user consumed nothing.

        Records from before the month are a sign that it was collected; of what sacct has forgotten there is none.
        """
        if self._source is Source.SACCT:
            return True
        since = await covered_since(self._config, self._context.records)
        return since is not None and since <= month.window.start

    async def staleness(self) -> str | None:
        """Why the figures are not to be believed where they say less; None if they are."""
        if self._source is Source.SACCT:
            return None
        return await staleness(self._config, self._context.records, self.now)
