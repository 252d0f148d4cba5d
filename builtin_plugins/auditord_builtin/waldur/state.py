"""Memory of the reports of an offering, from one to the next."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from auditord_hookspecs import PluginContext

_IGNORES_DATES: Final = "ignores_dates"
_REFUSED: Final = "refused"
_PROBES: Final = "probes"

Json = Mapping[str, Any]  # Any: JSON of our own


class ReportState:
    """The plugin's state as attributes.

    Args:
        context: where it is kept; a dry run keeps nothing.

    Attributes:
        ignores_dates: the version of a Waldur that puts every month into the present one.
        refused: see :class:`auditord_builtin.waldur.refusals.Refusals`.
        probes: see :class:`auditord_builtin.waldur.dates.DateCheck`.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        kept: Json = context.state or {}
        self.ignores_dates: str | None = kept.get(_IGNORES_DATES)
        self.refused: Mapping[str, Json] = kept.get(_REFUSED, {})
        self.probes: Sequence[Json] = kept.get(_PROBES, ())
        self._saved = self._as_json()

    def _as_json(self) -> Json:
        dates = {} if self.ignores_dates is None else {_IGNORES_DATES: self.ignores_dates}
        probes = {_PROBES: list(self.probes)} if self.probes else {}
        return {_REFUSED: dict(self.refused), **dates, **probes}

    async def save(self) -> None:
        """Keep what has changed."""
        state = self._as_json()
        if state != self._saved and not self._context.dry_run:
            await self._context.save_state(state)
            self._saved = state
