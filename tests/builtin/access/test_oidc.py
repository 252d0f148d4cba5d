"""Login at an issuer: a good one gives the claims that rules are about, every way to make a bad one is refused."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest

from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_builtin.access.jwt import open_jwt
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_hookspecs import AccessRefused, Credentials, Identity
from auditord_hookspecs.access import Login, LoginUnavailable
from tests.oidc_issuer import CLIENT, SECRET, TestIssuer, serving

pytestmark = pytest.mark.anyio

CALLBACK: Final = "https://accounting.example.org/login/sso/callback"
RULES: Final = [{"group": "/users/*", "roles": ["own"]}, {"subject": "sub-boss", "roles": ["reader"]}]


@dataclass
class LoginSetup:
    """An issuer, and ours at it."""

    issuer: TestIssuer
    login: Login
    ahead: timedelta

    async def came_back(self) -> tuple[Mapping[str, str], dict[str, str]]:
        """The cookies of the browser, and the query that it comes back with."""
        start = await self.login.start(CALLBACK)
        async with aiohttp.ClientSession() as browser, browser.get(start.url, allow_redirects=False) as got:
            assert got.status == 302
            back = got.headers["Location"]
        assert back.startswith(CALLBACK)
        return start.kept, dict(parse_qsl(urlsplit(back).query))

    async def logged_in(self) -> Mapping[str, object]:
        kept, answer = await self.came_back()
        return await self.login.finish(CALLBACK, kept, answer)

    async def identity(self) -> Identity | None:
        return await self.login(Credentials(claims=await self.logged_in()))  # type: ignore[operator,no-any-return] # it is both


@asynccontextmanager
async def opened(folder: Path, issuer: TestIssuer, **options: object) -> AsyncGenerator[LoginSetup, None]:
    async with serving(issuer):
        issuer.user.setdefault("groups", ["/users/hep", "/other"])
        login = {"client_id": CLIENT} | ({} if issuer.secret is None else {"client_secret": SECRET})
        fixed = {"issuer": issuer.url, "audience": ["api"], "rules": RULES, "user_claim": "preferred_username"}
        config = JwtConfig.model_validate({**fixed, "login": login, **options})
        sso = LoginSetup(issuer, None, timedelta(0))  # type: ignore[arg-type] # in the next lines
        context = HostAuthenticatorContext("sso", "jwt", lambda: datetime.now(UTC) + sso.ahead, state_dir=folder)
        async with open_jwt(config, context) as authenticate:
            found: Any = authenticate  # Any: it is both
            assert isinstance(found, Login)
            sso.login = found
            yield sso


async def test_claims_get_roles_by_the_rules_of_tokens(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        claims = await sso.logged_in()
        assert claims == {"sub": "sub-alice", "eduperson_entitlement": ["/users/hep"], "preferred_username": "alice"}
        assert await sso.identity() == Identity("sub-alice", ("own",), "alice")
        assert sso.login.title == "127.0.0.1"
        back = await sso.login.logout("https://accounting.example.org/login")
        assert back is not None
        assert back.startswith(f"{sso.issuer.url}/logout?client_id={CLIENT}&post_logout_redirect_uri=https%3A%2F%2Facc")


async def test_a_public_client_has_no_secret(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer(secret=None)) as sso:
        assert await sso.identity() is not None


async def test_what_the_id_token_lacks_is_asked_for(tmp_path: Path) -> None:
    user = {"sub": "sub-alice", "groups": None}
    userinfo = {"eduperson_entitlement": ["/users/x"], "preferred_username": "alice", "sub": "sub-alice"}
    async with opened(tmp_path, TestIssuer(user=user, userinfo=userinfo)) as sso:
        assert await sso.identity() == Identity("sub-alice", ("own",), "alice")
        sso.issuer.userinfo["sub"] = "sub-bob"
        with pytest.raises(AccessRefused, match="another user"):
            await sso.logged_in()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "another"}, "Audience"),
        ({"aud": "api"}, "Audience"),  # of our tokens, and yet none for logins
        ({"iss": "https://another.example.org"}, "issuer"),
        ({"exp": datetime(2026, 1, 1, tzinfo=UTC)}, "expired"),
        ({"exp": None}, "exp"),
        ({"azp": "another"}, "azp"),
        ({"sub": None}, "sub"),
        ({"groups": ["/other"]}, "no rule matches sub-alice"),
    ],
)
async def test_an_id_token_that_is_not_for_this_login_is_refused(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    async with opened(tmp_path, TestIssuer(changed=changed)) as sso:
        with pytest.raises(AccessRefused, match=reason):
            await sso.logged_in()


async def test_an_id_token_of_a_forger_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer(forged=True)) as sso:
        with pytest.raises(AccessRefused, match="Signature"):
            await sso.logged_in()


@pytest.mark.parametrize("state", ["another", "", None, "\udcff"])
async def test_a_wrong_state_costs_the_issuer_nothing(tmp_path: Path, state: str | None) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        kept, answer = await sso.came_back()
        del answer["state"]
        with pytest.raises(AccessRefused, match="state"):
            await sso.login.finish(CALLBACK, kept, answer | ({} if state is None else {"state": state}))
        assert sso.issuer.asked == 0


async def test_a_code_counts_once_and_for_its_own_login(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        kept, answer = await sso.came_back()
        await sso.login.finish(CALLBACK, kept, answer)
        with pytest.raises(AccessRefused, match="invalid_grant"):
            await sso.login.finish(CALLBACK, kept, answer)
        mine, _ = await sso.came_back()
        _, stolen = await sso.came_back()
        with pytest.raises(AccessRefused, match="invalid_grant"):  # PKCE: another browser began that login
            await sso.login.finish(CALLBACK, mine, {**stolen, "state": mine["state"]})


async def test_an_expired_code_and_a_refusal_say_so(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        kept, answer = await sso.came_back()
        sso.issuer.codes.clear()
        with pytest.raises(AccessRefused, match="answered 400 invalid_grant"):
            await sso.login.finish(CALLBACK, kept, answer)
        sso.issuer.denies = True
        with pytest.raises(AccessRefused, match="access_denied"):
            await sso.logged_in()
        sso.issuer.denies, sso.issuer.sent_iss = False, "https://another.example.org"
        with pytest.raises(AccessRefused, match="another issuer"):
            await sso.logged_in()
        sso.issuer.sent_iss, sso.issuer.secret = sso.issuer.url, "another"
        with pytest.raises(AccessRefused, match="invalid_client"):
            await sso.logged_in()


async def test_an_issuer_that_is_away_is_asked_once_a_minute(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        url, sso.issuer.url = sso.issuer.url, "https://another.example.org"
        with pytest.raises(LoginUnavailable, match="names another issuer"):
            await sso.login.start(CALLBACK)
        sso.issuer.url = url
        with pytest.raises(LoginUnavailable):
            await sso.login.start(CALLBACK)
        assert await sso.login.logout("https://x.example.org") is None
        sso.ahead += timedelta(minutes=1)
        await sso.login.start(CALLBACK)


async def test_an_issuer_that_goes_away_after_the_beginning(tmp_path: Path) -> None:
    async with opened(tmp_path, TestIssuer()) as sso:
        kept, answer = await sso.came_back()
        sso.issuer.away = True
        with pytest.raises(LoginUnavailable, match="answered 503"):
            await sso.login.finish(CALLBACK, kept, answer)
