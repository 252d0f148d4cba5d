"""The collectors, plugins and senders that auditord ships, as hook modules like those of third parties."""
