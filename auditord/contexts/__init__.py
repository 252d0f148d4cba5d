"""What the host lends to instances: the implementations of the protocols in :mod:`auditord_hookspecs.contexts`."""
