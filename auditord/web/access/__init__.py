"""Authentication and authorisation. They wrap the handlers, so they cost nothing without authenticators."""
