"""The fakes are what the contract says; checked by mypy and pyright, never run."""

from auditord.testing import FakeCollectorContext, FakeCommandContext, FakePluginContext, FakeSenderContext
from auditord_hookspecs import CollectorContext, CommandContext, PluginContext, SenderContext

collector: CollectorContext = FakeCollectorContext()
plugin: PluginContext = FakePluginContext()
sender: SenderContext = FakeSenderContext()
command: CommandContext = FakeCommandContext()
