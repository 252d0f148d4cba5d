"""The contexts of instances: implementations of the protocols in :mod:`auditord_hookspecs.contexts`."""
