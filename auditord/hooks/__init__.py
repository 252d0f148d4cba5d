"""Find hook modules by their entry points, check them, and call them."""

from auditord.hooks.hooks import HookEntry, HookModule, Hooks, installed_entries
from auditord.hooks.loading import Survey, broken_kinds, load_hooks, survey

__all__ = ["HookEntry", "HookModule", "Hooks", "Survey", "broken_kinds", "installed_entries", "load_hooks", "survey"]
