"""The credentials for Waldur: a token of its own, or one that an OpenID Connect provider hands out for a while."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import anyio
import msgspec

from auditord_builtin.waldur.client.answers import decode
from auditord_builtin.waldur.client.transport import Answer, Attempt

EARLY_SECONDS = 30.0
"""A token is renewed so long before it ends, or it could end on its way."""

DEFAULT_SECONDS = 300.0
"""The life of a token whose provider does not say."""


class Access(Protocol):
    """The source of the ``Authorization`` header."""

    async def authorization(self, exchange: "Exchanging") -> str:
        """The header's value."""
        ...


Exchanging = Callable[[str, Attempt], Awaitable[Answer]]
"""Makes attempts at something until one is answered: its name, and the attempt."""


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token of Waldur's own."""

    token: str

    async def authorization(self, exchange: Exchanging) -> str:
        """Nothing needs to be asked."""
        del exchange
        return f"Token {self.token}"


class _Granted(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float = DEFAULT_SECONDS


class ClientCredentials:
    """OpenID Connect's client-credentials grant; the token is kept until shortly before its end.

    Args:
        url: of the token endpoint.
        form: what is sent there, with our name and password.
        session: connections.
        proxy: the URL of a proxy on the way.
        monotonic: seconds of a clock that is never set.
    """

    def __init__(
        self,
        url: str,
        form: Mapping[str, str],
        session: aiohttp.ClientSession,
        proxy: str | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._url = url
        self._form = form
        self._session = session
        self._proxy = proxy
        self._monotonic = monotonic
        self._token = ""
        self._ends = monotonic()
        self._asking = anyio.Lock()

    async def authorization(self, exchange: Exchanging) -> str:
        """A token that has not ended; a new one if need be."""
        async with self._asking:
            if self._monotonic() >= self._ends:
                await self._renew(exchange)
        return f"Bearer {self._token}"

    async def _renew(self, exchange: Exchanging) -> None:
        name = f"POST {self._url}"
        granted = decode((await exchange(name, self._ask)).body, _Granted, name)
        self._token = granted.access_token
        self._ends = self._monotonic() + granted.expires_in - EARLY_SECONDS

    async def _ask(self) -> Answer:
        async with self._session.post(self._url, data=self._form, allow_redirects=False, proxy=self._proxy) as response:
            return await Answer.of(response)
