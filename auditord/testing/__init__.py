"""Test helpers for authors of collectors, plugins and senders: fake contexts and sample records.

auditord installs a pytest plugin with fixtures (:mod:`auditord.testing.plugin`). Everything here can also be used
without them.
"""

from auditord.testing.contexts import (
    FakeAuthenticatorContext,
    FakeCollectorContext,
    FakeCommandContext,
    FakeHost,
    FakePluginContext,
    FakeSenderContext,
    HttpRequest,
)
from auditord.testing.records import EPOCH, make_record

__all__ = [
    "EPOCH",
    "FakeAuthenticatorContext",
    "FakeCollectorContext",
    "FakeCommandContext",
    "FakeHost",
    "FakePluginContext",
    "FakeSenderContext",
    "HttpRequest",
    "make_record",
]
