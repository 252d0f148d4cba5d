"""The common part of both kinds of reports, summaries and individual jobs: what is due, and one message at a time."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from auditord_builtin.apel import metrics
from auditord_builtin.apel.broker import MessageTooLarge
from auditord_builtin.apel.config import ApelConfig
from auditord_builtin.apel.messages import Message
from auditord_builtin.apel.sending import Publisher, label
from auditord_builtin.apel.state import SavedState
from auditord_hookspecs import AuditordError, PluginContext, Window
from auditord_hookspecs.wording import counted

LISTED = 20
"""The number of problems of a month that are kept and logged."""


class NotReported(AuditordError):
    """Something could not be reported; the text says what, why, and what to do.

    Remedy:
        do what the text says; the state is saved, and the next run reports the rest.
    """


@dataclass(frozen=True, slots=True)
class Part:
    """A month or day of a site to report.

    Args:
        name: site and time, for messages.
        report: brings APEL up to date about it; raises AuditordError if it could not.
    """

    name: str
    report: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Reporter(ABC):
    """One run of one kind of reports."""

    config: ApelConfig
    context: PluginContext
    saved: SavedState
    publisher: Publisher

    @abstractmethod
    def begin(self, since: datetime) -> datetime:
        """The instant from which on jobs are reported, where ``publish_since`` is this one."""

    @abstractmethod
    async def due(self, site: str, since: datetime, *, full: bool) -> Sequence[Part]:
        """The parts to report now, in their order; ``full``: look at all since the beginning."""

    @abstractmethod
    def widened(self, period: Window) -> Window:
        """The period that is reported instead of a part of it."""

    @abstractmethod
    def again(self, site: str, period: Window) -> Sequence[Part]:
        """The parts of a period that was widened, changed or not."""

    @abstractmethod
    def refuse_other_kind(self, site: str, begin: datetime) -> None:
        """Return if nothing of the time since ``begin`` was reported as the other kind: APEL would add up both.

        Raises:
            NotReported: something was.
        """

    async def publish(self, message: Message) -> str | tuple[Message, Message]:
        """Publish a message and return its id at the broker; or its halves, if it is too large.

        Raises:
            NotReported: one record alone is too large.
            AuditordError: it was not taken.
        """
        try:
            identity = await self.publisher.publish(message, label(self.context.now(), self.saved.reported.sent))
        except MessageTooLarge as error:
            if message.records == 1:
                raise NotReported(f"{message.site} {message.month}: one record alone is too large: {error}") from error
            return message.halves()
        if not self.context.dry_run:
            metrics.PUBLISHED.labels(self.context.instance, message.site).inc()
        return identity

    def show_problems(self, subject: str, problems: Sequence[object]) -> None:
        """Name what is wrong: all of it in a dry run, else the first problems."""
        if self.context.dry_run:
            for problem in problems:
                self.context.show(f"! {problem}")
            return
        for problem in problems[:LISTED]:
            self.context.log.warning("%s", problem)
        if len(problems) > LISTED:
            self.context.log.warning("%s: %s in all", subject, counted(len(problems), "problem"))


def other_kind(site: str, last: object, then: str, other: str) -> NotReported:
    """The error for a time that was reported as another kind."""
    return NotReported(
        f"{site}: until {last} it was reported as {then}, and APEL would add up both: change to {other} from a "
        "later month on (publish_since), or leave message_type as it was"
    )
