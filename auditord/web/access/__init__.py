"""Authentication and authorisation, around the handlers, so that they cost nothing where there is no authenticator."""
