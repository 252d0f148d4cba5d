"""Waldur's API as typed methods: the requests that reporting needs, and no others."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar
from uuid import UUID

from auditord_builtin.waldur import answers, requests
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.connection import Connection, Monotonic, Observe, http_options
from auditord_builtin.waldur.errors import InvalidAnswer, Refused
from auditord_builtin.waldur.lists import read_list
from auditord_builtin.waldur.requests import Request, UserUsage, UserUsages, resource_usage
from auditord_hookspecs.http import HttpClient, HttpOptions, ignore_attempt

T = TypeVar("T")

NO_SUCH_ADDRESS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""The answers of servers that do not know the address for many users."""

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
) -> AsyncGenerator["WaldurClient", None]:
    """Open a client for the offering of an instance. Nothing is asked before the first method is called.

    Args:
        config: the address, the offering, the credentials.
        open_http: ``context.http``.
        show: makes a dry run: gets the text of each request that would write.
        observe: gets the status of every attempt, None if there was no answer.
        monotonic: seconds of a clock that is never set.

    Raises:
        AuditordError: the file of authorities cannot be used.
    """
    async with open_http(http_options(config, observe)) as http:
        yield WaldurClient(config, Connection(config, http, monotonic), show)


class WaldurClient:
    """One offering at one Waldur; ``show`` gets each request that would write in a dry run. See :func:`open_client`.

    Every method raises :class:`WaldurError`: AccessDenied, Refused, ServerFailed, Unreachable, InvalidAnswer.
    """

    def __init__(self, config: WaldurConfig, connection: Connection, show: Show | None) -> None:
        self._offering = config.waldur_offering_uuid
        self._connection = connection
        self._show = show
        self._bulk = True
        self.concurrency = config.concurrent_requests
        self.renew_budget = connection.renew_budget

    @property
    def dry_run(self) -> bool:
        """True: writes are only shown."""
        return self._show is not None

    # -- reading ------------------------------------------------------------------------------------------------------

    async def me(self) -> answers.User:
        """The user of the token."""
        return await self._read(requests.ME, answers.User)

    async def version(self) -> answers.Version:
        """The server's version."""
        return await self._read(requests.VERSION, answers.Version)

    async def offering(self) -> answers.Offering:
        """The offering with its components."""
        return await self._read(requests.offering(self._offering), answers.Offering)

    async def resources(self) -> Sequence[answers.Resource]:
        """The resources that can have usage; some have no account (``backend_id``) yet."""
        return await self._list(requests.resources(self._offering), answers.Resource, lambda each: each.uuid)

    async def offering_users(self) -> Sequence[answers.OfferingUser]:
        """The users of the offering; some have no username yet."""
        return await self._list(requests.offering_users(self._offering), answers.OfferingUser, lambda each: each.uuid)

    async def component_usages(self, month: date, resource: UUID | None = None) -> Sequence[answers.ComponentUsage]:
        """The totals of a month (its first day), of all resources or of one."""
        request = requests.component_usages(self._offering, month, resource)
        rows = await self._list(request, answers.ComponentUsage, lambda each: each.uuid)
        # A parameter that a server does not know is ignored without a word, and all months would be taken for one.
        if others := {row.billing_period for row in rows} - {month}:
            raise InvalidAnswer(f"{request}: asked for the totals of {month:%Y-%m} and got some of {_months(others)}")
        return rows

    async def user_usages(self, month: date) -> Sequence[answers.ComponentUserUsage]:
        """The amounts of all users in a month."""
        return await self._list(
            requests.user_usages(self._offering, month),
            answers.ComponentUserUsage,
            lambda each: (each.component_usage, each.username),
        )

    async def clock_ahead(self, now: Callable[[], datetime]) -> timedelta | None:
        """The time that the server's clock is ahead of ours, to a second; None if it does not say what time it has."""
        answer = await self._connection.exchange(requests.VERSION)
        ours = now()
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(answer.headers.get("Date", "")) - ours
        return None

    async def has_bulk(self) -> bool:
        """True if the server knows the address for many users; found out without writing."""
        try:
            await self._connection.exchange(requests.BULK_PROBE)
        except Refused as error:
            return error.status not in NO_SUCH_ADDRESS
        return True

    # -- writing ------------------------------------------------------------------------------------------------------

    async def set_usage(self, resource: UUID, moment: datetime, amounts: Mapping[str, Decimal]) -> None:
        """Write the totals of a resource in the month of ``moment``; those of components not named stay."""
        await self._write(requests.set_usage(resource_usage(resource, moment, amounts)))

    async def set_user_usages(self, row: UUID | str, usages: Sequence[UserUsage]) -> Mapping[str, str]:
        """Write the amounts of users below a total; returns why some were refused, by username.

        Older servers take one user at a time. The request for many is atomic: if it is refused, it is halved until the
        users that are the reason are alone.

        Raises:
            Refused: the reason is that the month is over, and so the same for all.
        """
        if not usages:
            return {}
        if not self._bulk:
            return await self._one_by_one(row, usages)
        try:
            await self._write(requests.set_user_usages(str(row), UserUsages(tuple(usages))))
        except Refused as error:
            if error.about_a_closed_month:
                raise
            if error.status in NO_SUCH_ADDRESS:
                return await self._without_bulk(row, usages)
            return await self._halved(row, usages, error)
        return {}

    async def _halved(self, row: UUID | str, usages: Sequence[UserUsage], error: Refused) -> Mapping[str, str]:
        if len(usages) == 1:
            return {usages[0].username: str(error)}
        middle = len(usages) // 2
        first = await self.set_user_usages(row, usages[:middle])
        return {**first, **await self.set_user_usages(row, usages[middle:])}

    async def _without_bulk(self, row: UUID | str, usages: Sequence[UserUsage]) -> Mapping[str, str]:
        """Either the server has no such address or the total is gone: the address for one user shows which."""
        reason = await self._set_one(row, usages[0])
        if reason is not None:
            return dict.fromkeys((each.username for each in usages), reason)
        self._bulk = False
        return await self._one_by_one(row, usages[1:])

    async def _one_by_one(self, row: UUID | str, usages: Sequence[UserUsage]) -> Mapping[str, str]:
        reasons: dict[str, str] = {}
        for usage in usages:
            reason = await self._set_one(row, usage)
            if reason is not None:
                reasons[usage.username] = reason
        return reasons

    async def _set_one(self, row: UUID | str, usage: UserUsage) -> str | None:
        try:
            await self._write(requests.set_user_usage(str(row), usage))
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
            raise InvalidAnswer(f"{request} was answered {answer.status} and not 201: is it Waldur? {answer.text}")

    async def _read(self, request: Request, kind: type[T]) -> T:
        return answers.decode((await self._connection.exchange(request)).body, kind, request)

    async def _list(self, request: Request, kind: type[T], key: Callable[[T], object]) -> Sequence[T]:
        return await read_list(self._connection.exchange, request, kind, key)


def _months(periods: Iterable[date | None]) -> str:
    return ", ".join(sorted("no month" if period is None else f"{period:%Y-%m}" for period in periods))
