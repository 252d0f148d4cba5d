"""The collectors, plugins and senders that auditord ships. Each is a hook module like any third party's."""
