"""No secret of a token gets into a log by a request's path."""

import json
import logging
from datetime import UTC, datetime
from typing import Never

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from auditord.errors import StoreUnavailable
from auditord.web.access import audit
from auditord.web.places import ReadingPlaces, Shares
from auditord.web.requests import path_for_logs
from auditord.web.streams import StreamedAnswers
from auditord.web.wire import ReadHandlers
from auditord_builtin.access.tokens import new_token, take_apart


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("place", ["/{}", "/api/v1/records/{}", "/record/{}/versions", "//{}?x=1"])
def test_the_secret_of_a_token_in_a_path_is_masked(
    place: str, caplog: pytest.LogCaptureFixture, *, encoded: bool
) -> None:
    _, token = new_token("alice", [], datetime(2026, 1, 1, tzinfo=UTC), None)
    token_id, secret = take_apart(token) or ("", "")
    written = token.replace("_", "%5F") if encoded else token
    with caplog.at_level(logging.INFO, logger="auditord.audit"):
        audit.log_refusal(make_mocked_request("GET", place.format(written)), None, "there is nothing at this path")
    path = json.loads(caplog.records[-1].getMessage())["path"]
    assert secret[:10] not in path.replace("%5F", "_")
    assert token_id in path  # so that the operator knows which token to revoke


def test_other_paths_are_logged_as_they_are() -> None:
    for path in ("/records", "/record/auditord_1", "/api/v1/records/slurm-17", "/record/auditord_0123456789ab"):
        assert path_for_logs(make_mocked_request("GET", path)) == path


@pytest.mark.parametrize(
    "rest", ["#token=eyJhbGciOi", "?a=b#token=eyJhbGciOi", "?token=eyJhbGciOi", "#?token=eyJhbGciOi"]
)
def test_neither_query_nor_fragment_is_logged(rest: str) -> None:
    assert path_for_logs(make_mocked_request("GET", f"/login{rest}")) == "/login"


@pytest.mark.anyio
async def test_a_failed_read_is_logged_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: web.BaseRequest) -> Never:
        raise StoreUnavailable("away")

    places = ReadingPlaces(2)
    try:
        handlers = ReadHandlers(fail, StreamedAnswers(places, Shares(1)))
        answer = await handlers.get_many(make_mocked_request("GET", "/records?meta[user_id][c]=a-secret"))
    finally:
        places.close()
    assert answer.status == 500
    assert "GET /records was answered 500" in caplog.text
    assert "a-secret" not in caplog.text
