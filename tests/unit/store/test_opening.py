"""The store that a URL names."""

import pytest

from auditord.errors import ConfigurationError
from auditord.store.opening import open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://db.example/auditord?colour=red", 'invalid URI query parameter: "colour"'),
        ("postgresql://[::1/auditord", 'matching "]" in IPv6 host address'),
        ("sqlite://", "neither sqlite:///path"),
        ("sqlite:///", "neither sqlite:///path"),
        ("sqlite://host/path.db", "neither sqlite:///path"),
        ("sqlite:///path.db?mode=ro", "neither sqlite:///path"),
        ("records.db", "neither sqlite:///path"),
        ("sqlite:records.db", "neither sqlite:///path"),
        ("mysql://x/y", "neither sqlite:///path"),
    ],
)
async def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^store.url: .*{message}"):
        async with open_store(url, counted_keys=()):
            pytest.fail("opened")
