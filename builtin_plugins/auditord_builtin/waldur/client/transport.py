"""One request until it is answered: which faults are passing, and what each answer means."""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp

from auditord_builtin.waldur.client.errors import (
    AccessDenied,
    InvalidAnswer,
    Refused,
    ServerFailed,
    Unreachable,
    WaldurError,
)
from auditord_builtin.waldur.client.pacing import ATTEMPTS, ATTEMPTS_AT_500, Pacing, retry_after

_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_SHOWN: Final = 300

NO_ANSWER: Final = "none"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Args:
        status: of HTTP.
        headers: of the answer.
        body: all of it.
        next_page: the URL of the next page of a list.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    next_page: str | None = None

    @classmethod
    async def of(cls, response: aiohttp.ClientResponse) -> "Answer":
        """Read all of an answer.

        Raises:
            aiohttp.ClientError: it was cut.
        """
        following = response.links.get("next")
        page = None if following is None else str(following["url"])
        return cls(response.status, response.headers, await response.read(), page)

    @property
    def text(self) -> str:
        """The body for messages, the first bit of it."""
        return self.body[:_SHOWN].decode(errors="replace").strip()


Attempt = Callable[[], Awaitable[Answer]]


class Transport:
    """Makes attempts until an answer is there that will not change by waiting.

    Args:
        pacing: how long to wait, and when to give up.
        observe: hears of each attempt: the status of the answer, or ``none``.
    """

    def __init__(self, pacing: Pacing, observe: Callable[[str], None]) -> None:
        self._pacing = pacing
        self._observe = observe

    async def exchange(self, name: str, attempt: Attempt) -> Answer:
        """The answer to a request that may be made several times.

        Args:
            name: the request, for messages.
            attempt: makes it once.

        Raises:
            Unreachable: no answer, or 429, 502, 503, 504, until the time was up.
            WaldurError: see :func:`check`.
        """
        made = 0
        while True:
            made += 1
            answer, fault = await self._once(name, attempt)
            if answer is not None and not _passing(answer.status):
                return check(name, answer)
            asked_for = None if answer is None else retry_after(answer.headers)
            if not await self._pacing.pause(made, _attempts(answer), asked_for):
                raise _gave_up(name, answer, fault, made)

    async def _once(self, name: str, attempt: Attempt) -> tuple[Answer | None, str]:
        try:
            answer = await attempt()
        except aiohttp.InvalidURL as error:
            raise InvalidAnswer(f"{name}: no such address can be: {error}") from error
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as error:
            self._observe(NO_ANSWER)
            raise Unreachable(f"{name}: the server's certificate is not trusted: {error}; see ca_file") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observe(NO_ANSWER)
            return None, str(error) or type(error).__name__
        self._observe(str(answer.status))
        return answer, ""


def _passing(status: int) -> bool:
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _attempts(answer: Answer | None) -> int:
    looked_at = answer is not None and answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
    return ATTEMPTS_AT_500 if looked_at else ATTEMPTS


def _gave_up(name: str, answer: Answer | None, fault: str, made: int) -> WaldurError:
    times = "once" if made == 1 else f"{made} times"
    if answer is None:
        return Unreachable(f"{name} was not answered, asked {times}: {fault}")
    text = f"{name} was answered {answer.status}, asked {times}: {answer.text}"
    if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerFailed(text, answer.status, answer.text)
    return Unreachable(text)


def check(name: str, answer: Answer) -> Answer:
    """The same answer if it is a success, 2xx.

    Raises:
        AccessDenied: 401 or 403.
        Refused: another 4xx.
        InvalidAnswer: anything else. Redirects are not followed: a POST would become a GET.
    """
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return answer
    text = f"{name} was answered {answer.status}: {answer.text}"
    if answer.status in _DENIED:
        hint = "is the token valid" if answer.status == HTTPStatus.UNAUTHORIZED else "has its user a role there"
        raise AccessDenied(f"{text} ({hint}?)", answer.status, answer.body.decode(errors="replace"))
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise Refused(text, answer.status, answer.body.decode(errors="replace"))
    raise InvalidAnswer(f"{text}; redirects are not followed: configure the address that it names")
