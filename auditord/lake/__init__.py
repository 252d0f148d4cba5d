"""The lake: one Apache Iceberg table with the records of many daemons, for engines that need no auditord.

A daemon syncs there what its record store holds (:mod:`auditord.store.lake_changes` reads the feed for it). The
archive's modules know Iceberg; here is what differs where several daemons write to one table. The libraries are the
extra ``lake``; nothing imports them unless the configuration has a lake.
"""
