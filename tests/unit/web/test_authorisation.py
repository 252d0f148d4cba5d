"""Authenticators are opened, or the start ends with the option at fault."""

from datetime import UTC, datetime

import pytest

from auditord.config.loading import load_text
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord.web.access.authorisation import open_authorisation

HOOKS = load_hooks([])
SECTIONS = """
authenticators:
  local:
    kind: unix_users
    rules: [{user: no-such-user, roles: [reader]}]
"""


@pytest.mark.anyio
async def test_who_does_not_exist_is_named_with_the_authenticator() -> None:
    configuration = load_text(SECTIONS, "auditord.yml", HOOKS.kinds, {})
    with pytest.raises(ConfigurationError, match=r"authenticators\.local cannot be opened: .*no-such-user"):
        async with open_authorisation(configuration, HOOKS, lambda: datetime.now(UTC)):
            pass
