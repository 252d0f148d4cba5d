"""The HTTP server: AUDITOR's wire contract at the root, on every address of ``api.listen``."""
