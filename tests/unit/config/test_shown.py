"""The configuration as it is shown: no URL shows a secret."""

import pytest

from auditord.config.shown import mask_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:geheim@db/a", "postgresql://me:**********@db/a"),
        ("postgresql://db/a?password=geheim", "postgresql://db/a?password=**********"),
        (
            "postgresql://db/a?user=me&sslpassword=geheim&port=1",
            "postgresql://db/a?user=me&sslpassword=**********&port=1",
        ),
        ("https://x.example/hook?access_token=geheim#part", "https://x.example/hook?access_token=**********#part"),
        ("https://x.example/path?user=me", "https://x.example/path?user=me"),
    ],
)
def test_secrets_in_urls_are_masked(url: str, shown: str) -> None:
    assert mask_secrets({"url": [url]}) == {"url": [shown]}
