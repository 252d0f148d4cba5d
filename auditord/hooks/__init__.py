"""Hook modules: found by their entry points, checked, and called."""

from auditord.hooks.entries import HookEntry, HookModule, installed_entries
from auditord.hooks.hooks import Hooks
from auditord.hooks.loading import Survey, load_hooks, survey

__all__ = ["HookEntry", "HookModule", "Hooks", "Survey", "installed_entries", "load_hooks", "survey"]
