"""A client for Waldur's API: retries, paging, and a method for each request that reporting needs."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import anyio
import msgspec
import stamina

from auditord_builtin.waldur import api
from auditord_builtin.waldur.api import (
    AccessDenied,
    InvalidAnswer,
    Refused,
    Request,
    ServerFailed,
    Unreachable,
    UserUsage,
    WaldurError,
    decode,
)
from auditord_builtin.waldur.config import WaldurConfig
from auditord_hookspecs.http import (
    CertificateUntrusted,
    HttpAnswer,
    HttpClient,
    HttpOptions,
    InvalidHttpAnswer,
    NoHttpAnswer,
    ignore_attempt,
)
from auditord_hookspecs.sources import TlsFiles
from auditord_hookspecs.wording import counted

Observe = Callable[[int | None], None]
Monotonic = Callable[[], float]

TIMEOUT: Final = timedelta(minutes=1)
"""The time limit of an answer from Waldur."""

ATTEMPTS: Final = 8
"""Attempts per request. The time budget ends most series of attempts earlier."""

ATTEMPTS_AT_500: Final = 3
"""Attempts after a 500. The server has processed the request, so more attempts would hardly help."""

CONCURRENT_REQUESTS: Final = 4

FIRST_WAIT: Final = 1.0

EARLY_SECONDS: Final = 30.0
"""Renew a token this long before it expires, so that it cannot expire in flight."""

_LATER: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, *range(501, 600)})


def http_options(config: WaldurConfig, observe: Observe, timeout: timedelta) -> HttpOptions:
    return HttpOptions(
        tls=TlsFiles(ca=config.ca_file),
        verify=config.verify_ssl,
        proxy=config.proxy,
        headers={"Accept": "application/json"},
        timeout=timeout,
        connections=CONCURRENT_REQUESTS,
        attempts=ATTEMPTS,
        retried=_LATER,
        on_attempt=observe,
    )


class Connection:
    """Sends requests. All retries of a run, or of one month of load-history, share one time budget.

    Every request can raise a :class:`WaldurError`: AccessDenied, Refused, ServerFailed, Unreachable, InvalidAnswer.
    """

    def __init__(self, config: WaldurConfig, http: HttpClient, monotonic: Monotonic = time.monotonic) -> None:
        self._base = config.waldur_api_url.removesuffix("/api/")
        self._http, self._monotonic = http, monotonic
        self._budget = config.retry_for.total_seconds()
        self._tokens = None if config.waldur_api_token is not None else _Tokens(config, self, monotonic)
        self._static = "" if config.waldur_api_token is None else config.waldur_api_token.get_secret_value()
        self.renew_budget()

    def renew_budget(self) -> None:
        """Reset the time budget, for the next month."""
        self._ends = self._monotonic() + self._budget

    async def exchange(self, request: Request) -> HttpAnswer:
        """Send a request to Waldur's API with the token."""
        token = f"Token {self._static}" if self._tokens is None else f"Bearer {await self._tokens.valid()}"
        url, headers = f"{self._base}{request.path}", {"Authorization": token}
        return await self.ask(
            request, request.method, url, params=request.parameters, body=request.body, headers=headers
        )

    async def ask(self, name: object, method: str, url: str, **more: Any) -> HttpAnswer:
        """Send a request with retries, and return the answer if it is 2xx."""
        async for attempt in stamina.retry_context(
            on=self._repeats, attempts=ATTEMPTS_AT_500, timeout=None, wait_initial=FIRST_WAIT, wait_max=60.0
        ):
            with attempt:
                left = timedelta(seconds=max(0.0, self._ends - self._monotonic()))
                try:
                    answer = await self._http.request(method, url, idempotent=True, retry_for=left, **more)
                except CertificateUntrusted as error:
                    raise Unreachable(f"{name}: {error}; see ca_file") from error
                except NoHttpAnswer as error:
                    raise Unreachable(f"{name} was not answered, tried {_times(error.attempts)}: {error}") from error
                except InvalidHttpAnswer as error:
                    raise InvalidAnswer(f"{name}: {error}") from error
                return check(name, answer, attempt.num)
        raise AssertionError("stamina raises the last error")

    def _repeats(self, error: Exception) -> bool:
        return isinstance(error, ServerFailed) and self._monotonic() + FIRST_WAIT <= self._ends


class _Granted(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float = 300.0  # if the provider does not say


class _Tokens:
    """The client-credentials grant of OpenID Connect. The token is cached until shortly before it expires."""

    def __init__(self, config: WaldurConfig, connection: Connection, monotonic: Monotonic) -> None:
        if config.oidc_token_url is None or config.oidc_client_id is None or config.oidc_client_secret is None:
            raise WaldurError("neither a token nor all OpenID Connect options are configured")
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
        async with self._asking:
            if self._monotonic() >= self._ends:
                name = f"POST {self._url}"
                answer = await self._connection.ask(name, "POST", self._url, form=self._form)
                granted = decode(answer.body, _Granted, name)
                self._token = granted.access_token
                self._ends = self._monotonic() + granted.expires_in - EARLY_SECONDS
        return self._token


def check(name: object, answer: HttpAnswer, number: int = 1) -> HttpAnswer:
    """Return the answer if it is 2xx. ``number`` counts the attempts that ended in 500, for the message.

    Raises:
        AccessDenied: 401 or 403.
        Refused: another 4xx.
        ServerFailed: 500.
        Unreachable: 429, or 5xx other than 500, after all attempts.
        InvalidAnswer: any other status. Redirects are not followed: a POST would become a GET.
    """
    if answer.ok:
        return answer
    status, text, body = answer.status, f"{name} was answered {answer.status}", answer.body.decode(errors="replace")
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ServerFailed(f"{text}, tried {_times(number)}: {answer.text}", status, answer.text)
    if status in _LATER:
        raise Unreachable(f"{text}, tried {_times(answer.attempts)}: {answer.text}")
    text = f"{text}: {answer.text}"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        hint = "is the token valid" if status == HTTPStatus.UNAUTHORIZED else "does its user have a role there"
        raise AccessDenied(f"{text} ({hint}?)", status, body)
    if status >= HTTPStatus.BAD_REQUEST:
        raise Refused(text, status, body)
    raise InvalidAnswer(f"{text}; redirects are not followed: configure the address that they lead to")


def _times(made: int) -> str:
    return "once" if made == 1 else f"{made} times"


T = TypeVar("T")

COUNT: Final = "X-Result-Count"

READINGS: Final = 3
"""Attempts to read a list that changes while it is being paged."""

Ask = Callable[[Request], Awaitable[HttpAnswer]]


async def read_list(ask: Ask, request: Request, kind: type[T], key: Callable[[T], object]) -> list[T]:
    """Return all rows of a paged list. ``key`` identifies a row: a duplicate means that the list has changed.

    Raises:
        InvalidAnswer: the list is incomplete or changed during every attempt, or a page lacks the total length or has a
            link to itself or an earlier page.
        WaldurError: the request for a page failed.
    """
    for _ in range(READINGS):
        rows: list[T] = []
        counts: set[int] = set()
        number, following = 0, 1
        while following > number:
            number = following
            page_request = request.page(number)
            answer = await ask(page_request)
            page = decode(answer.body, list[kind], page_request)  # type: ignore[valid-type] # a type in a variable
            rows += page
            length = answer.headers.get(COUNT, "")
            if not length.isascii() or not length.isdigit():
                raise InvalidAnswer(
                    f"{page_request}: the answer lacks the length of the list ({COUNT}: {length!r}): does a proxy "
                    "remove it?"
                )
            counts.add(int(length))
            if (link := answer.links.get("next")) is not None:
                # Only the page's number is used: proxies often get the link's host wrong.
                text = parse_qs(urlsplit(link).query).get("page", [""])[-1]
                following = int(text) if text.isascii() and text.isdigit() else 0
                if following <= number:
                    raise InvalidAnswer(f"{page_request}: page {number} has a wrong link to the next page: {link!r}")
            elif page and len(rows) < max(counts):
                following += 1
        if len(counts) == 1 and len({key(row) for row in rows}) == len(rows):
            if len(rows) < (count := counts.pop()):
                raise InvalidAnswer(f"{request}: the list ended after {len(rows)} of {counted(count, 'row')}")
            return rows
    raise InvalidAnswer(f"{request}: the list changed during each of {READINGS} attempts to read it")


NO_SUCH_ADDRESS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""The statuses of requests to an endpoint that the server does not have."""

Show = Callable[[str], None]
OpenHttp = Callable[[HttpOptions], AbstractAsyncContextManager[HttpClient]]


@asynccontextmanager
async def open_client(
    config: WaldurConfig,
    open_http: OpenHttp,
    *,
    show: Show | None = None,
    observe: Observe = ignore_attempt,
    monotonic: Monotonic = time.monotonic,
    timeout: timedelta = TIMEOUT,
) -> AsyncGenerator["WaldurClient", None]:
    """Open a client for an instance's offering. No request is sent before a method is called.

    Args:
        config: the address, the offering, the credentials.
        open_http: ``context.http``.
        show: makes this a dry run: receives the text of each write request, which is not sent.
        observe: receives the status of every attempt, or None if there was no answer.
        monotonic: returns the seconds of a monotonic clock.
        timeout: the time limit of an answer.

    Raises:
        AuditordError: the CA file cannot be used.
    """
    async with open_http(http_options(config, observe, timeout)) as http:
        yield WaldurClient(config, Connection(config, http, monotonic), show)


class WaldurClient:
    """A client for one offering, opened by :func:`open_client`. In a dry run, write requests only go to ``show``.

    Every request can raise a :class:`WaldurError`: AccessDenied, Refused, ServerFailed, Unreachable, InvalidAnswer.
    """

    def __init__(self, config: WaldurConfig, connection: Connection, show: Show | None) -> None:
        self._offering = config.waldur_offering_uuid
        self._connection = connection
        self._show = show
        self._bulk = True
        self.concurrency = CONCURRENT_REQUESTS
        self.renew_budget = connection.renew_budget

    @property
    def dry_run(self) -> bool:
        """True if write requests are only shown."""
        return self._show is not None

    # -- reading ------------------------------------------------------------------------------------------------------

    async def me(self) -> api.User:
        return await self._read(api.ME, api.User)

    async def version(self) -> api.Version:
        return await self._read(api.VERSION, api.Version)

    async def offering(self) -> api.Offering:
        return await self._read(api.offering(self._offering), api.Offering)

    async def resources(self) -> Sequence[api.Resource]:
        """Return the resources that can have usage. Some have no account (``backend_id``) yet."""
        return await self._list(api.resources(self._offering), api.Resource, lambda each: each.uuid)

    async def offering_users(self) -> Sequence[api.OfferingUser]:
        """Return the users of the offering. Some have no username yet."""
        return await self._list(api.offering_users(self._offering), api.OfferingUser, lambda each: each.uuid)

    async def component_usages(self, month: date, resource: UUID | None = None) -> Sequence[api.ComponentUsage]:
        """Return the totals of a month, given its first day, of all resources or of one."""
        request = api.component_usages(self._offering, month, resource)
        rows = await self._list(request, api.ComponentUsage, lambda each: each.uuid)
        # A server ignores a parameter that it does not know, and would return all months.
        if others := {row.billing_period for row in rows} - {month}:
            got = ", ".join(sorted("no month" if each is None else f"{each:%Y-%m}" for each in others))
            raise InvalidAnswer(f"{request}: asked for the totals of {month:%Y-%m} and got some of {got}")
        return rows

    async def user_usages(self, month: date) -> Sequence[api.ComponentUserUsage]:
        return await self._list(
            api.user_usages(self._offering, month),
            api.ComponentUserUsage,
            lambda each: (each.component_usage, each.username),
        )

    async def clock_ahead(self, now: Callable[[], datetime]) -> timedelta | None:
        """Return how far the server's clock is ahead of ours, to the second, or None if the answer has no date."""
        answer = await self._connection.exchange(api.VERSION)
        ours = now()
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(answer.headers.get("Date", "")) - ours
        return None

    async def has_bulk(self) -> bool:
        """Return True if the server has the bulk endpoint. The probe does not write."""
        try:
            await self._connection.exchange(api.BULK_PROBE)
        except Refused as error:
            return error.status not in NO_SUCH_ADDRESS
        return True

    # -- writing ------------------------------------------------------------------------------------------------------

    async def set_usage(self, resource: UUID, moment: datetime, amounts: Mapping[str, Decimal]) -> None:
        """Write totals of a resource for the month of ``moment``. Components without an entry keep their totals."""
        await self._write(api.set_usage(resource, moment, amounts))

    async def set_user_usages(self, row: UUID | str, usages: Sequence[UserUsage]) -> Mapping[str, str]:
        """Write the amounts of users below a total, and return the reason for each refused user.

        Older servers accept one user per request. A bulk request is atomic, so a refused one is halved until the
        offending users are isolated.

        Raises:
            Refused: the month is closed, which applies to all users.
        """
        if not (usages and self._bulk):
            return await self._write_one_by_one(row, usages)
        try:
            await self._write(api.set_user_usages(row, usages))
        except Refused as error:
            if error.about_a_closed_month:
                raise
            if error.status in NO_SUCH_ADDRESS:
                # Write one user alone, to tell a server without the bulk endpoint from a total that no longer exists.
                if (reason := await self._write_one(row, usages[0])) is not None:
                    return dict.fromkeys((each.username for each in usages), reason)
                self._bulk = False
                return await self._write_one_by_one(row, usages[1:])
            if len(usages) == 1:
                return {usages[0].username: str(error)}
            middle = len(usages) // 2
            first = await self.set_user_usages(row, usages[:middle])
            return {**first, **await self.set_user_usages(row, usages[middle:])}
        return {}

    async def _write_one_by_one(self, row: UUID | str, usages: Sequence[UserUsage]) -> Mapping[str, str]:
        reasons: dict[str, str] = {}
        for usage in usages:
            reason = await self._write_one(row, usage)
            if reason is not None:
                reasons[usage.username] = reason
        return reasons

    async def _write_one(self, row: UUID | str, usage: UserUsage) -> str | None:
        try:
            await self._write(api.set_user_usage(row, usage))
        except Refused as error:
            if error.about_a_closed_month:
                raise
            return str(error)
        return None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _write(self, request: Request) -> None:
        if self._show is not None:
            self._show(f"{request} {(request.body or b'').decode()}")
            return
        answer = await self._connection.exchange(request)
        if answer.status != HTTPStatus.CREATED:
            raise InvalidAnswer(f"{request} was answered {answer.status} instead of 201: is this Waldur? {answer.text}")

    async def _read(self, request: Request, kind: type[T]) -> T:
        return api.decode((await self._connection.exchange(request)).body, kind, request)

    async def _list(self, request: Request, kind: type[T], key: Callable[[T], object]) -> Sequence[T]:
        return await read_list(self._connection.exchange, request, kind, key)
