"""Who calls, and what they may do: around the handlers, so that it costs nothing where nobody is asked."""

from auditord.web.access.gate import Gate
from auditord.web.access.opening import opened_gate
from auditord.web.access.principals import principal_name, principal_of

__all__ = ["Gate", "opened_gate", "principal_name", "principal_of"]
