"""Requests to one Waldur: authorised, made again while faults pass, their answers checked."""

import time
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import anyio
import msgspec
import stamina

from auditord_builtin.waldur.answers import decode
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.errors import AccessDenied, InvalidAnswer, Refused, ServerFailed, Unreachable, WaldurError
from auditord_builtin.waldur.requests import Request
from auditord_hookspecs.http import (
    CertificateUntrusted,
    HttpAnswer,
    HttpClient,
    HttpOptions,
    InvalidHttpAnswer,
    NoHttpAnswer,
)
from auditord_hookspecs.sources import TlsFiles

Observe = Callable[[int | None], None]
Monotonic = Callable[[], float]

ATTEMPTS: Final = 8
"""Of one request; the budget of time ends most series earlier."""

ATTEMPTS_AT_500: Final = 3
"""A server that answers 500 has looked at the request; it will hardly answer otherwise the tenth time."""

FIRST_WAIT: Final = 1.0

EARLY_SECONDS: Final = 30.0
"""A token is renewed so long before it ends, or it could end on its way."""

_LATER: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, *range(501, 600)})


def http_options(config: WaldurConfig, observe: Observe) -> HttpOptions:
    """The options of connections to an instance's Waldur."""
    return HttpOptions(
        tls=TlsFiles(ca=config.ca_file),
        verify=config.verify_ssl,
        proxy=config.proxy,
        headers={"Accept": "application/json"},
        timeout=config.request_timeout,
        connections=config.concurrent_requests,
        attempts=ATTEMPTS,
        retried=_LATER,
        on_attempt=observe,
    )


class Connection:
    """Makes requests; all retries of a run, or of a month that is loaded, share one budget of time.

    Every method raises :class:`WaldurError`: AccessDenied, Refused, ServerFailed, Unreachable, InvalidAnswer.
    """

    def __init__(self, config: WaldurConfig, http: HttpClient, monotonic: Monotonic = time.monotonic) -> None:
        self._base = config.waldur_api_url.removesuffix("/api/")
        self._http, self._monotonic = http, monotonic
        self._budget = config.retry_for.total_seconds()
        self._tokens = None if config.waldur_api_token is not None else _Tokens(config, self, monotonic)
        self._static = "" if config.waldur_api_token is None else config.waldur_api_token.get_secret_value()
        self.renew_budget()

    def renew_budget(self) -> None:
        """Give the retries of the next month as much time as those of the first had."""
        self._ends = self._monotonic() + self._budget

    async def exchange(self, request: Request) -> HttpAnswer:
        """Make a request of Waldur's API."""
        token = f"Token {self._static}" if self._tokens is None else f"Bearer {await self._tokens.valid()}"
        url, headers = f"{self._base}{request.path}", {"Authorization": token}
        return await self.ask(
            request, request.method, url, params=request.parameters, body=request.body, headers=headers
        )

    async def ask(self, name: object, method: str, url: str, **more: Any) -> HttpAnswer:  # Any: of HttpClient.request
        """Make a request that may be made several times, and return its answer if that is a success."""
        async for attempt in stamina.retry_context(
            on=self._repeats, attempts=ATTEMPTS_AT_500, timeout=None, wait_initial=FIRST_WAIT, wait_max=60.0
        ):
            with attempt:
                left = timedelta(seconds=max(0.0, self._ends - self._monotonic()))
                return await self._once(name, attempt.num, method, url, idempotent=True, retry_for=left, **more)
        raise AssertionError("stamina raises the last error")

    def _repeats(self, error: Exception) -> bool:
        return isinstance(error, ServerFailed) and self._monotonic() + FIRST_WAIT <= self._ends

    async def _once(self, name: object, number: int, method: str, url: str, **more: Any) -> HttpAnswer:  # Any: the same
        try:
            answer = await self._http.request(method, url, **more)
        except CertificateUntrusted as error:
            raise Unreachable(f"{name}: {error}; see ca_file") from error
        except NoHttpAnswer as error:
            raise Unreachable(f"{name} was not answered, asked {_times(error.attempts)}: {error}") from error
        except InvalidHttpAnswer as error:
            raise InvalidAnswer(f"{name}: {error}") from error
        return check(name, answer, number)


class _Granted(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float = 300.0  # of a provider that does not say


class _Tokens:
    """OpenID Connect's client-credentials grant; the token is kept until shortly before its end."""

    def __init__(self, config: WaldurConfig, connection: Connection, monotonic: Monotonic) -> None:
        if config.oidc_token_url is None or config.oidc_client_id is None or config.oidc_client_secret is None:
            raise WaldurError("neither a token nor all of the options of OpenID Connect are configured")
        secret = config.oidc_client_secret.get_secret_value()
        self._form = {
            "grant_type": "client_credentials",
            "client_id": config.oidc_client_id,
            "client_secret": secret,
        }
        self._url, self._connection, self._monotonic = config.oidc_token_url, connection, monotonic
        self._token, self._ends = "", monotonic()
        self._asking = anyio.Lock()

    async def valid(self) -> str:
        """A token that has not ended; a new one if need be."""
        async with self._asking:
            if self._monotonic() >= self._ends:
                name = f"POST {self._url}"
                answer = await self._connection.ask(name, "POST", self._url, form=self._form)
                granted = decode(answer.body, _Granted, name)
                self._token = granted.access_token
                self._ends = self._monotonic() + granted.expires_in - EARLY_SECONDS
        return self._token


def check(name: object, answer: HttpAnswer, number: int = 1) -> HttpAnswer:
    """The same answer if it is a success, 2xx; ``number`` is how often it was answered 500, if it was.

    Raises:
        AccessDenied: 401 or 403.
        Refused: another 4xx.
        ServerFailed: 500.
        Unreachable: an answer that says "later", in spite of all attempts.
        InvalidAnswer: another answer. Redirects are not followed: a POST would become a GET.
    """
    if answer.ok:
        return answer
    status, text, body = answer.status, f"{name} was answered {answer.status}", answer.body.decode(errors="replace")
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ServerFailed(f"{text}, asked {_times(number)}: {answer.text}", status, answer.text)
    if status in _LATER:
        raise Unreachable(f"{text}, asked {_times(answer.attempts)}: {answer.text}")
    text = f"{text}: {answer.text}"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        hint = "is the token valid" if status == HTTPStatus.UNAUTHORIZED else "has its user a role there"
        raise AccessDenied(f"{text} ({hint}?)", status, body)
    if status >= HTTPStatus.BAD_REQUEST:
        raise Refused(text, status, body)
    raise InvalidAnswer(f"{text}; redirects are not followed: configure the address that it names")


def _times(made: int) -> str:
    return "once" if made == 1 else f"{made} times"
