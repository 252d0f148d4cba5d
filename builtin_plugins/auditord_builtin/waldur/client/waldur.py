"""Waldur's API as typed methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar
from uuid import UUID

import aiohttp

from auditord_builtin.waldur.client import requests
from auditord_builtin.waldur.client.access import Access
from auditord_builtin.waldur.client.answers import (
    ComponentUsage,
    ComponentUserUsage,
    Offering,
    OfferingUser,
    Resource,
    User,
    Version,
    decode,
)
from auditord_builtin.waldur.client.errors import InvalidAnswer, Refused
from auditord_builtin.waldur.client.lists import read_list
from auditord_builtin.waldur.client.pacing import Pacing
from auditord_builtin.waldur.client.payloads import UserUsage, UserUsages, resource_usage
from auditord_builtin.waldur.client.requests import Request
from auditord_builtin.waldur.client.transport import Answer, Transport

T = TypeVar("T")

NO_SUCH_ADDRESS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""The answers of servers that do not know the address for many users."""

Show = Callable[[str], None]


class WaldurClient:
    """One offering at one Waldur. Make it with :func:`auditord_builtin.waldur.client.open_client`.

    Every method raises :class:`WaldurError`: AccessDenied, Refused, ServerFailed, Unreachable, InvalidAnswer.

    Args:
        base: the server's address, without ``/api/``.
        offering: which offering.
        session: connections.
        proxy: the URL of a proxy on the way.
        access: who we are.
        transport: makes attempts.
        pacing: the budget of retries.
        concurrency: how many requests may be under way at once.
        show: set for a dry run: gets each request that would write, which is not made then.
    """

    def __init__(
        self,
        *,
        base: str,
        offering: UUID,
        session: aiohttp.ClientSession,
        proxy: str | None,
        access: Access,
        transport: Transport,
        pacing: Pacing,
        concurrency: int,
        show: Show | None,
    ) -> None:
        self._base = base
        self._offering = offering
        self._session = session
        self._proxy = proxy
        self._access = access
        self._transport = transport
        self._pacing = pacing
        self._concurrency = concurrency
        self._show = show
        self._bulk = True

    @property
    def concurrency(self) -> int:
        """The number of requests that may be under way at once."""
        return self._concurrency

    @property
    def dry_run(self) -> bool:
        """True: what would be written is only shown."""
        return self._show is not None

    def renew_budget(self) -> None:
        """Give the retries of the next month as much time as those of the first had."""
        self._pacing.renew()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def me(self) -> User:
        """Whose token it is."""
        return await self._read(requests.ME, User)

    async def version(self) -> Version:
        """The server's version."""
        return await self._read(requests.VERSION, Version)

    async def offering(self) -> Offering:
        """The offering with its components."""
        return await self._read(requests.offering(self._offering), Offering)

    async def resources(self) -> Sequence[Resource]:
        """The resources that can have usage; some have no account (``backend_id``) yet."""
        return await self._list(requests.resources(self._offering), Resource, lambda each: each.uuid)

    async def offering_users(self) -> Sequence[OfferingUser]:
        """The users of the offering; some have no username yet."""
        return await self._list(requests.offering_users(self._offering), OfferingUser, lambda each: each.uuid)

    async def component_usages(self, month: date, resource: UUID | None = None) -> Sequence[ComponentUsage]:
        """The totals of a month (its first day), of all resources or of one."""
        request = requests.component_usages(self._offering, month, resource)
        rows = await self._list(request, ComponentUsage, lambda each: each.uuid)
        # A parameter that a server does not know is ignored without a word, and all months would be taken for one.
        if others := {row.billing_period for row in rows} - {month}:
            raise InvalidAnswer(f"{request}: asked for the totals of {month:%Y-%m} and got some of {_months(others)}")
        return rows

    async def user_usages(self, month: date) -> Sequence[ComponentUserUsage]:
        """The amounts of all users in a month."""
        return await self._list(
            requests.user_usages(self._offering, month),
            ComponentUserUsage,
            lambda each: (each.component_usage, each.username),
        )

    async def clock_ahead(self, now: Callable[[], datetime]) -> timedelta | None:
        """The time that the server's clock is ahead of ours, to a second; None if it does not say what time it has."""
        answer = await self._exchange(requests.VERSION)
        ours = now()
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(answer.headers.get("Date", "")) - ours
        return None

    async def has_bulk(self) -> bool:
        """True if the server knows the address for many users; found out without writing."""
        try:
            await self._exchange(requests.bulk_probe())
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
        """Either the server has no such address or the total is gone: the address for one user tells which."""
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
        answer = await self._exchange(request)
        if answer.status != HTTPStatus.CREATED:
            raise InvalidAnswer(f"{request} was answered {answer.status} and not 201: is it Waldur? {answer.text}")

    async def _read(self, request: Request, kind: type[T]) -> T:
        return decode((await self._exchange(request)).body, kind, request)

    async def _list(self, request: Request, kind: type[T], key: Callable[[T], object]) -> Sequence[T]:
        return await read_list(self._exchange, request, kind, key)

    async def _exchange(self, request: Request) -> Answer:
        authorization = await self._access.authorization(self._transport.exchange)

        json_body = {} if request.body is None else {"Content-Type": "application/json"}

        async def attempt() -> Answer:
            async with self._session.request(
                request.method,
                f"{self._base}{request.path}",
                params=list(request.parameters),
                data=request.body,
                headers={"Authorization": authorization, **json_body},
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                return await Answer.of(response)

        return await self._transport.exchange(str(request), attempt)


def _months(periods: Iterable[date | None]) -> str:
    return ", ".join(sorted("no month" if period is None else f"{period:%Y-%m}" for period in periods))
