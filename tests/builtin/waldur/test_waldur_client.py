"""The client against the API's rules: what is asked, what is asked again, and what each answer means."""

import json
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.waldur.api import (
    AccessDenied,
    InvalidAnswer,
    Refused,
    ServerFailed,
    Unreachable,
    UserUsage,
    WaldurError,
    amount_text,
    user_usage,
)
from auditord_builtin.waldur.client import WaldurClient, open_client
from auditord_hookspecs import AuditordError
from tests.waldur_server import (
    BROKEN,
    CUT,
    OIDC_SECRET,
    RESET,
    RESET_AFTER,
    STAFF_TOKEN,
    TOKEN,
    FakeWaldur,
    Fault,
    fake_waldur,
    throttled,
    uuid_of,
)
from tests.waldur_settings import waldur_config

pytestmark = pytest.mark.anyio

MARCH = date(2026, 3, 1)
NOW = datetime(2026, 3, 15, 11, tzinfo=UTC)
ONE = uuid_of("one")
RESOURCES = "GET /api/marketplace-provider-resources/"


@dataclass
class Ticking:
    """A clock that only moves when a test moves it."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def waldur() -> Generator[FakeWaldur, None, None]:
    with fake_waldur() as running:
        yield running


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


@asynccontextmanager
async def client_of(
    waldur: FakeWaldur, ticking: Ticking, *, show: Callable[[str], None] | None = None, **options: Any
) -> AsyncGenerator[WaldurClient]:
    access = {"waldur_api_url": f"{waldur.url}/api/", "waldur_api_token": TOKEN, **options}
    async with open_client(
        waldur_config(**access), FakePluginContext().http, show=show, monotonic=ticking.monotonic
    ) as client:
        yield client


@pytest.fixture
async def client(waldur: FakeWaldur, ticking: Ticking) -> AsyncGenerator[WaldurClient]:
    async with client_of(waldur, ticking) as running:
        yield running


async def write(client: WaldurClient, amount: str = "6.59") -> None:
    await client.set_usage(ONE, NOW, {"cpu": Decimal(amount)})


def usages(*names: str) -> list[UserUsage]:
    return [user_usage(name, NOW, Decimal("0.19"), None) for name in names]


# -- reading ----------------------------------------------------------------------------------------------------------


async def test_a_list_is_read_to_its_end_whatever_host_its_links_name(ticking: Ticking) -> None:
    accounts = {f"r{number}": (f"acct{number}", "OK") for number in range(7)}
    with fake_waldur(resources=accounts, page_size=3) as waldur:
        async with client_of(waldur, ticking) as client:
            found = await client.resources()
    assert [each.backend_id for each in found] == [account for account, _ in accounts.values()]
    assert [made.query["page"] for made in waldur.requests] == [["1"], ["2"], ["3"]]
    assert all(made.query["state"] == ["OK", "Updating", "Terminating", "Erred"] for made in waldur.requests)


async def test_pages_that_do_not_count_up_are_not_followed_for_ever(waldur: FakeWaldur, client: WaldurClient) -> None:
    again = f'<{waldur.url}/api/x/?page=1>; rel="next"'
    waldur.fail(RESOURCES, Fault(200, body=b"[]", headers=(("Link", again), ("X-Result-Count", "9"))))
    with pytest.raises(InvalidAnswer, match="page 1 has a wrong link to the next page"):
        await client.resources()
    assert len(waldur.requests) == 1


async def test_a_list_without_links_is_read_on_until_its_count_is_reached(ticking: Ticking) -> None:
    accounts = {f"r{number}": (f"acct{number}", "OK") for number in range(7)}
    with fake_waldur(resources=accounts, page_size=3, links=False) as waldur:
        async with client_of(waldur, ticking) as client:
            assert len(await client.resources()) == 7
    assert [made.query["page"] for made in waldur.requests] == [["1"], ["2"], ["3"]]


def rows_answer(*names: str, count: int | None) -> Fault:
    """A page of resources."""
    body = json.dumps([{"uuid": uuid_of(name).hex, "backend_id": name} for name in names]).encode()
    return Fault(200, body=body, headers=() if count is None else (("X-Result-Count", str(count)),))


async def test_a_list_that_ends_before_its_count_is_not_believed(waldur: FakeWaldur, client: WaldurClient) -> None:
    waldur.fail(RESOURCES, rows_answer("one", "two", count=4), rows_answer(count=4))
    with pytest.raises(InvalidAnswer, match="2 of 4 rows"):
        await client.resources()


@pytest.mark.parametrize("count", ["", "many", "-1"])
async def test_a_list_that_does_not_say_how_long_it_is_is_not_believed(
    waldur: FakeWaldur, client: WaldurClient, count: str
) -> None:
    waldur.fail(RESOURCES, Fault(200, body=b"[]", headers=(("X-Result-Count", count),) if count else ()))
    with pytest.raises(InvalidAnswer, match="X-Result-Count"):
        await client.resources()


async def test_a_list_that_changes_while_it_is_read_is_read_again(waldur: FakeWaldur, client: WaldurClient) -> None:
    grown = [rows_answer("one", "two", count=3), rows_answer("three", "four", count=4)]
    moved = [rows_answer("one", "two", count=4), rows_answer("two", "four", count=4)]
    waldur.fail(RESOURCES, *grown, *moved)
    assert [each.backend_id for each in await client.resources()] == ["acct1"]
    assert [made.query["page"][0] for made in waldur.requests] == ["1", "2", "1", "2", "1"]


async def test_a_list_that_never_stands_still_is_given_up(waldur: FakeWaldur, client: WaldurClient) -> None:
    waldur.fail(RESOURCES, *[rows_answer("one", "two", count=4), rows_answer("two", "four", count=4)] * 3)
    with pytest.raises(InvalidAnswer, match="changed during each of 3 attempts"):
        await client.resources()


async def test_totals_of_another_month_are_no_answer(waldur: FakeWaldur, client: WaldurClient) -> None:
    await write(client)
    waldur.filters = False
    with pytest.raises(InvalidAnswer, match="asked for the totals of 2026-02 and got some of 2026-03"):
        await client.component_usages(date(2026, 2, 1))


async def test_whose_token_which_offering_and_which_users(client: WaldurClient) -> None:
    user, offering, (alice, _) = await client.me(), await client.offering(), await client.offering_users()
    assert (user.username, user.is_staff, user.permissions[0].role_name) == ("service", False, "OFFERING.MANAGER")
    assert [(each.type, each.takes_usage) for each in offering.components] == [("cpu", True), ("mem", True)]
    assert alice.username == "alice"
    assert (await client.version()).version == "7.5.0"


async def test_amounts_are_read_as_they_are_written(client: WaldurClient) -> None:
    await write(client)
    (row,) = await client.component_usages(MARCH)
    assert (row.type, row.usage, row.resource_uuid, row.billing_period) == ("cpu", Decimal("6.59"), ONE, MARCH)
    assert await client.set_user_usages(row.uuid, usages("alice")) == {}
    (below,) = await client.user_usages(MARCH)
    assert (below.username, below.usage, below.row) == ("alice", Decimal("0.19"), row.uuid)


async def test_how_far_the_clocks_are_apart(waldur: FakeWaldur, client: WaldurClient) -> None:
    assert await client.clock_ahead(lambda: waldur.now - timedelta(seconds=90)) == timedelta(seconds=90)


async def test_half_of_an_answer_is_not_believed_and_not_asked_for_again(
    waldur: FakeWaldur, client: WaldurClient
) -> None:
    waldur.fail("GET /api/marketplace-provider-resources", BROKEN)
    with pytest.raises(InvalidAnswer, match="is not in Waldur's format"):
        await client.resources()
    assert len(waldur.requests) == 1


# -- attempts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [RESET, RESET_AFTER, CUT, Fault(500), Fault(502), Fault(503), Fault(504)], ids=repr)
async def test_passing_faults_are_waited_for(waldur: FakeWaldur, client: WaldurClient, fault: Fault) -> None:
    waldur.fail("GET /api/marketplace-provider-resources", fault, fault)
    assert len(await client.resources()) == 1
    assert len(waldur.requests) == 3


@pytest.mark.parametrize("fault", [RESET, RESET_AFTER, Fault(502), Fault(503), Fault(502, after=True)], ids=repr)
async def test_a_write_may_come_twice_and_counts_once(waldur: FakeWaldur, client: WaldurClient, fault: Fault) -> None:
    waldur.fail("POST", fault)
    await write(client)
    assert len(waldur.requests) == 2
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "6.59"}


async def test_a_server_that_says_later_is_asked_again(waldur: FakeWaldur, client: WaldurClient) -> None:
    waldur.fail("GET", throttled(17), Fault(429, headers=(("Retry-After", "soon"),)), *[Fault(503)] * 4)
    await client.me()
    assert len(waldur.requests) == 7


async def test_a_server_that_asks_for_more_time_than_there_is_is_not_waited_for(
    waldur: FakeWaldur, client: WaldurClient
) -> None:
    waldur.fail("GET", throttled(3_600))
    with pytest.raises(Unreachable, match="answered 429, tried once"):
        await client.me()


async def test_all_requests_share_one_budget(waldur: FakeWaldur, ticking: Ticking) -> None:
    waldur.always["GET"] = throttled(40)
    async with client_of(waldur, ticking, retry_for="100s") as client:
        with pytest.raises(Unreachable, match="tried 8 times"):
            await client.me()
        ticking.seconds += 61
        for _ in range(2):
            with pytest.raises(Unreachable, match="tried once"):
                await client.me()
        client.renew_budget()
        with pytest.raises(Unreachable, match="tried 8 times"):
            await client.me()


async def test_a_server_error_is_not_waited_for_once_the_time_is_up(waldur: FakeWaldur, ticking: Ticking) -> None:
    waldur.always["GET"] = Fault(500)
    async with client_of(waldur, ticking, retry_for="100s") as client:
        ticking.seconds += 100
        with pytest.raises(ServerFailed, match="answered 500, tried once"):
            await client.me()


async def test_a_server_error_that_stays_is_about_the_request(waldur: FakeWaldur, client: WaldurClient) -> None:
    waldur.always["POST"] = Fault(500)
    with pytest.raises(ServerFailed, match="answered 500, tried 3 times"):
        await write(client)
    assert len(waldur.requests) == 3


async def test_a_server_that_is_not_there_is_named(waldur: FakeWaldur, ticking: Ticking) -> None:
    options: dict[str, Any] = {"waldur_api_url": "http://127.0.0.1:1/api/", "retry_for": "5s"}
    async with client_of(waldur, ticking, **options) as client:
        with pytest.raises(Unreachable, match=r"GET /api/users/me/ was not answered, tried \d times"):
            await client.me()


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Refused), (401, AccessDenied), (403, AccessDenied), (404, Refused), (302, InvalidAnswer)]
)
async def test_other_answers_are_final(
    waldur: FakeWaldur, client: WaldurClient, status: int, kind: type[WaldurError]
) -> None:
    waldur.always["POST"] = Fault(status, body=b'{"detail": "as it is"}', headers=(("Location", waldur.url),))
    with pytest.raises(kind, match=f"POST /api/marketplace-component-usages/set_usage/ was answered {status}"):
        await write(client)
    assert len(waldur.requests) == 1


async def test_a_login_page_is_no_success(waldur: FakeWaldur, client: WaldurClient) -> None:
    waldur.always["POST"] = Fault(200, body=b"<html>please log in</html>")
    with pytest.raises(InvalidAnswer, match="200 instead of 201: is this Waldur"):
        await write(client)


async def test_every_attempt_is_observed(waldur: FakeWaldur, ticking: Ticking) -> None:
    waldur.fail("GET", Fault(503))
    waldur.fail("POST", RESET)  # a reset GET may be repeated by aiohttp itself, once
    heard: list[int | None] = []
    config, http = waldur_config(waldur_api_url=waldur.url, waldur_api_token=TOKEN), FakePluginContext().http
    async with open_client(config, http, observe=heard.append, monotonic=ticking.monotonic) as client:
        await client.me()
        await write(client)
    assert heard == [503, 200, None, 201]


# -- who we are -------------------------------------------------------------------------------------------------------


async def test_a_token_of_waldur(waldur: FakeWaldur, client: WaldurClient) -> None:
    await client.me()
    assert waldur.requests[0].authorization == f"Token {TOKEN}"


def oidc(waldur: FakeWaldur, secret: str = OIDC_SECRET) -> dict[str, Any]:
    url = f"{waldur.url}/token"
    return {
        "waldur_api_token": None,
        "oidc_token_url": url,
        "oidc_client_id": "auditord",
        "oidc_client_secret": secret,
    }


async def test_a_token_of_a_provider_is_kept_until_shortly_before_its_end(ticking: Ticking) -> None:
    with fake_waldur(token_seconds=100) as waldur:
        async with client_of(waldur, ticking, **oidc(waldur)) as client:
            await client.me()
            ticking.seconds += 69
            await client.me()
            ticking.seconds += 2
            await client.me()
    assert [made.authorization for made in waldur.requests if made.path != "/token"] == [
        "Bearer granted-1",
        "Bearer granted-1",
        "Bearer granted-2",
    ]


async def test_a_provider_that_is_busy_is_waited_for_and_one_that_refuses_is_not(
    waldur: FakeWaldur, ticking: Ticking
) -> None:
    waldur.fail("POST /token", Fault(503))
    async with client_of(waldur, ticking, **oidc(waldur)) as client:
        await client.me()
    async with client_of(waldur, ticking, **oidc(waldur, "wrong")) as client:
        with pytest.raises(AccessDenied, match="/token was answered 401"):
            await client.me()
    assert waldur.asked() == ["POST /token", "POST /token", "GET /api/users/me/", "POST /token"]


# -- the way there ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that vouches for itself, with its key."""
    folder = tmp_path_factory.mktemp("certificate")
    subject = ("-subj", "/CN=waldur", "-addext", "subjectAltName=IP:127.0.0.1")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "both.pem", "-out", "cert.pem")
    subprocess.run(["openssl", "req", "-x509", *key, *subject], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(both.read_text() + (folder / "cert.pem").read_text())
    return both


async def test_a_server_is_trusted_by_its_authority_or_not_at_all(certificate: Path, ticking: Ticking) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with fake_waldur(tls=context) as waldur:
        async with client_of(waldur, ticking) as client:
            with pytest.raises(Unreachable, match=r"certificate is not trusted.*see ca_file"):
                await client.me()
        assert waldur.requests == []
        trusting: list[dict[str, Any]] = [{"ca_file": certificate}, {"verify_ssl": False}]
        for options in trusting:
            async with client_of(waldur, ticking, **options) as client:
                await client.me()


async def test_authorities_that_cannot_be_read_are_named(waldur: FakeWaldur, ticking: Ticking, tmp_path: Path) -> None:
    with pytest.raises(AuditordError, match=r"cannot use the TLS files .*/none\.pem"):
        async with client_of(waldur, ticking, ca_file=tmp_path / "none.pem"):
            pass


async def test_a_proxy_on_the_way(waldur: FakeWaldur, ticking: Ticking) -> None:
    elsewhere = {"waldur_api_url": "http://waldur.example/api/", "oidc_token_url": "http://provider.example/token"}
    options: dict[str, Any] = oidc(waldur) | elsewhere | {"proxy": waldur.url}
    async with client_of(waldur, ticking, **options) as client:
        await client.me()
    assert waldur.asked() == ["POST /token", "GET /api/users/me/"]


# -- users ------------------------------------------------------------------------------------------------------------


async def total(client: WaldurClient) -> str:
    await write(client)
    (row,) = await client.component_usages(MARCH)
    return str(row.uuid)


async def test_many_users_are_one_request(waldur: FakeWaldur, client: WaldurClient) -> None:
    row = await total(client)
    assert await client.set_user_usages(row, usages("alice", "bob")) == {}
    assert len(waldur.bodies("set_user_usages")) == 1
    assert set(waldur.user_amounts("2026-03").values()) == {"0.19"}


async def test_an_older_server_gets_one_user_at_a_time_and_is_asked_once(ticking: Ticking) -> None:
    with fake_waldur(has_bulk=False) as waldur:
        async with client_of(waldur, ticking) as client:
            row = await total(client)
            assert not await client.has_bulk()
            assert await client.set_user_usages(row, usages("alice", "bob")) == {}
            assert await client.set_user_usages(row, usages("carol")) == {}
    assert len(waldur.bodies("set_user_usages")) == 1 + 1  # and the question beforehand
    assert [body["username"] for body in waldur.bodies("set_user_usage")] == ["alice", "bob", "carol"]


async def test_a_total_that_is_gone_is_not_taken_for_an_older_server(waldur: FakeWaldur, client: WaldurClient) -> None:
    row = await total(client)
    reasons = await client.set_user_usages(uuid_of("gone"), usages("alice", "bob"))
    assert list(reasons) == ["alice", "bob"]
    assert await client.set_user_usages(row, usages("alice", "bob")) == {}
    assert len(waldur.bodies("set_user_usages")) == 2
    assert len(waldur.bodies("set_user_usage")) == 1


async def test_one_user_who_is_refused_does_not_keep_the_others_out(ticking: Ticking) -> None:
    names = [f"user{number}" for number in range(16)]
    with fake_waldur(refused_users={"user5"}) as waldur:
        async with client_of(waldur, ticking) as client:
            reasons = await client.set_user_usages(await total(client), usages(*names))
    assert list(reasons) == ["user5"]
    assert "This field is not valid" in reasons["user5"]
    assert len(waldur.user_amounts("2026-03")) == 15
    assert len(waldur.bodies("set_user_usages")) == 9


async def test_whether_many_users_fit_is_found_out_without_writing(waldur: FakeWaldur, client: WaldurClient) -> None:
    assert await client.has_bulk()
    assert waldur.asked("POST") == []


# -- dry runs and amounts ---------------------------------------------------------------------------------------------


async def test_a_dry_run_shows_what_it_would_write_and_reads_for_real(waldur: FakeWaldur, ticking: Ticking) -> None:
    shown: list[str] = []
    async with client_of(waldur, ticking, show=shown.append) as client:
        await client.resources()
        await write(client)
        await client.set_user_usages("<row>", usages("alice"))
    assert waldur.asked("POST") == []
    assert len(waldur.asked("GET")) == 1
    assert shown[0].startswith(f'POST /api/marketplace-component-usages/set_usage/ {{"resource":"{ONE}"')
    assert shown[1].startswith("POST /api/marketplace-component-usages/<row>/set_user_usages/")


@pytest.mark.parametrize(
    ("amount", "text"), [("0", "0.00"), ("6.5", "6.50"), ("1E+3", "1000.00"), ("12896", "12896.00")]
)
def test_amounts_have_two_decimals(amount: str, text: str) -> None:
    assert amount_text(Decimal(amount)) == text


@pytest.mark.parametrize("amount", ["0.005", "NaN", "Infinity"])
def test_nothing_is_rounded_twice(amount: str) -> None:
    with pytest.raises(ValueError, match="round it first"):
        amount_text(Decimal(amount))


async def test_a_token_of_staff_is_known_as_one(waldur: FakeWaldur, ticking: Ticking) -> None:
    async with client_of(waldur, ticking, waldur_api_token=STAFF_TOKEN) as client:
        assert (await client.me()).is_staff
