"""The fakes are what the contract says; checked by mypy and pyright, never run."""

from auditord.testing import FakeCollectorContext, FakePluginContext, FakeSenderContext
from auditord_hookspecs import CollectorContext, PluginContext, SenderContext

collector: CollectorContext = FakeCollectorContext()
plugin: PluginContext = FakePluginContext()
sender: SenderContext = FakeSenderContext()
