"""The faults between us and Waldur; each text names the request and says what was answered."""

from http import HTTPStatus

from auditord_hookspecs import AuditordError


class WaldurError(AuditordError):
    """Root of the faults of this client.

    Remedy:
        see the class that was raised; `auditord waldur diagnose` looks at everything between the records and Waldur.
    """


class Unreachable(WaldurError):
    """No answer, or none but "later", in spite of all attempts: nothing is known about what was asked.

    Remedy:
        see network, proxy and Waldur; the next run reports it.
    """


class InvalidAnswer(WaldurError):
    """Something else than Waldur has answered, or half of an answer; asking again would not help.

    Remedy:
        see waldur_api_url: it ends in /api/, and nothing but Waldur answers there.
    """


class Answered(WaldurError):
    """An answer that is no success, with its status and its body as text.

    Remedy:
        read the body: it is in Waldur's own words; `auditord waldur diagnose` looks at token, offering and accounts.
    """

    def __init__(self, text: str, status: int, body: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class AccessDenied(Answered):
    """401 or 403: the token is not valid, or its user may not do this.

    Remedy:
        make a new token in Waldur for a user with a role on the offering, write it to waldur_api_token, and run
        `auditord waldur diagnose`.
    """

    @property
    def for_all(self) -> bool:
        """True if the token is not valid, so that no other request will succeed, either."""
        return self.status == HTTPStatus.UNAUTHORIZED


class Refused(Answered):
    """Another 4xx: Waldur does not want this very request.

    Remedy:
        read the body, which is in Waldur's own words; `auditord waldur diagnose` looks at the causes.
    """

    @property
    def about_a_closed_month(self) -> bool:
        """True if the reason is that the token may not report for months that are over."""
        return "backfilling past billing periods" in self.body.casefold()


class ServerFailed(Answered):
    """500 again and again: Waldur cannot cope with this very request.

    Remedy:
        see Waldur's log; the next run tries again.
    """


class DateIgnored(WaldurError):
    """An amount for a month that is over did not arrive there: this Waldur is too old to know dates.

    It answers 201 all the same, and writes the amount into the current month.

    Remedy:
        upgrade Waldur, or load the month with a token of staff: `auditord waldur load-history`.
    """
