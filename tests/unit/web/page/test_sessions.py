"""Sealed cookies: they end after their time, and nobody else can make or change one."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from auditord.errors import ConfigurationError
from auditord.web.access.sessions import FILE, Sessions, TokenTooLong, new_session, open_sessions

LENGTH = timedelta(hours=1)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> Sessions:
    return open_sessions(tmp_path, LENGTH, "/", clock)


def asking(**cookies: str) -> web.BaseRequest:
    return make_mocked_request("GET", "/", headers={"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())})


def begun(sessions: Sessions, token: str = "secret") -> tuple[str, str]:  # noqa: S107 of the test
    request, response = asking(), web.Response()
    sessions.begin(request, response, new_session(token))
    return sessions.name(request), response.cookies[sessions.name(request)].value


def test_a_session_ends_after_its_time(sessions: Sessions, clock: Clock) -> None:
    name, value = begun(sessions)
    clock.now += LENGTH
    session = sessions.of(asking(**{name: value}))
    assert session is not None
    assert session.token == "secret"  # noqa: S105 the same
    clock.now += timedelta(seconds=1)
    assert sessions.of(asking(**{name: value})) is None
    assert sessions.has_ended(asking(**{name: value}))
    assert not sessions.has_ended(asking())


def test_nobody_else_makes_or_changes_a_session(sessions: Sessions, tmp_path: Path, clock: Clock) -> None:
    name, value = begun(sessions)
    for at in range(0, len(value), 7):
        other = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        assert sessions.of(asking(**{name: other})) is None
    (tmp_path / "other").mkdir()
    stranger = open_sessions(tmp_path / "other", LENGTH, "/", clock)
    assert stranger.name(asking()) != name
    assert sessions.of(asking(**{name: begun(stranger)[1]})) is None
    assert sessions.of(asking(**{name: sessions.proof("x")})) is None
    assert sessions.of(asking(**{name: "\N{LATIN SMALL LETTER E WITH ACUTE}"})) is None


def test_a_proof_is_its_owners_for_a_time(sessions: Sessions, clock: Clock) -> None:
    proof = sessions.proof("session 1")
    assert sessions.is_proof(proof, "session 1")
    assert not sessions.is_proof(proof, "session 2")
    assert not sessions.is_proof("", "")
    assert not sessions.is_proof(begun(sessions)[1], "session 1")
    clock.now += LENGTH + timedelta(seconds=1)
    assert not sessions.is_proof(proof, "session 1")


def test_ended_sessions_are_kept_while_their_cookies_would_count(sessions: Sessions, clock: Clock) -> None:
    for _ in range(3):
        name, value = begun(sessions)
        sessions.end(asking(**{name: value}), web.Response())
        assert sessions.of(asking(**{name: value})) is None
        clock.now += LENGTH
    assert len(sessions.kept.ended) == 1
    again = open_sessions(sessions.path.parent, LENGTH, "/", clock)
    assert again.kept == sessions.kept


def test_a_token_that_fits_into_no_cookie_is_refused(sessions: Sessions) -> None:
    begun(sessions, "x" * 2_600)
    with pytest.raises(TokenTooLong, match="too long for a cookie"):
        begun(sessions, "x" * 3_000)


@pytest.mark.parametrize("content", ["", "{}", '{"key": "short"}', '{"key": 1}'])
def test_a_key_that_cannot_be_used_stops_the_start(tmp_path: Path, clock: Clock, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigurationError, match="remove the file; users then have to log in again"):
        open_sessions(tmp_path, LENGTH, "/", clock)
