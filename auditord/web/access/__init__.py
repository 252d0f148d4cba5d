"""Authentication and authorisation, around the handlers, so that they cost nothing where there is no authenticator."""

from auditord.web.access.authorisation import Authorisation, open_authorisation

__all__ = ["Authorisation", "open_authorisation"]
