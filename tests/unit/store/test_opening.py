"""Which store a URL names."""

import pytest

from auditord.errors import ConfigurationError
from auditord.store.opening import open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://db.example/auditor", "PostgreSQL is not available in this version"),
        ("sqlite://", "not of the form sqlite:///path"),
        ("sqlite:///", "not of the form sqlite:///path"),
        ("sqlite://host/path.db", "not of the form sqlite:///path"),
        ("sqlite:///path.db?mode=ro", "not of the form sqlite:///path"),
        ("records.db", "not of the form sqlite:///path"),
        ("sqlite:records.db", "not of the form sqlite:///path"),
        ("mysql://x/y", "not of the form sqlite:///path"),
    ],
)
async def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^store.url: .*{message}"):
        async with open_store(url, counted_keys=()):
            pytest.fail("opened")
