"""The faults between us and Waldur; each text names the request and says what was answered."""

from http import HTTPStatus

from auditord_hookspecs import AuditordError


class WaldurError(AuditordError):
    """Root of the faults of this client."""


class Unreachable(WaldurError):
    """No answer, or none but "later", in spite of all attempts: nothing is known about what was asked."""


class InvalidAnswer(WaldurError):
    """Something else than Waldur has answered, or half of an answer; asking again would not help."""


class Answered(WaldurError):
    """An answer that is no success, with its status and its body as text."""

    def __init__(self, text: str, status: int, body: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class AccessDenied(Answered):
    """401 or 403: the token is not valid, or its user may not do this."""

    @property
    def for_all(self) -> bool:
        """True if the token is not valid, so that no other request will succeed, either."""
        return self.status == HTTPStatus.UNAUTHORIZED


class Refused(Answered):
    """Another 4xx: Waldur does not want this very request."""

    @property
    def about_a_closed_month(self) -> bool:
        """True if the reason is that the token may not report for months that are over."""
        return "backfilling past billing periods" in self.body.casefold()


class ServerFailed(Answered):
    """500 again and again: Waldur cannot cope with this very request."""


class DateIgnored(WaldurError):
    """An amount for a month that is over did not arrive there: this Waldur is too old to know dates.

    It answers 201 all the same, and writes the amount into the current month.
    """
