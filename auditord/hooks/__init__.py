"""Hook modules: found by their entry points, checked, and called."""

from auditord.hooks.entries import HookEntry, HookModule, installed_entries
from auditord.hooks.hooks import Hooks
from auditord.hooks.loading import Survey, broken_kinds, load_hooks, survey

__all__ = ["HookEntry", "HookModule", "Hooks", "Survey", "broken_kinds", "installed_entries", "load_hooks", "survey"]
