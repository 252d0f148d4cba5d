"""Our own API under ``/api/v1``, described at ``/openapi.json``."""
