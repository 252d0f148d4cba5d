"""The collectors, plugins and senders that auditord ships; each is a hook module like any third party's."""
