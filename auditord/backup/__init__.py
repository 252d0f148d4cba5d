"""Backup and restore: record store and spool as of one moment, and their way back.

Entries flow from the spool to the store, and what clients wrote flows from the store's outbox to the spool, for senders
that forward it. A backup is the spool as of a moment and the store as of a later one, and no entry leaves the outbox in
between: so each entry is in one of them at least. What is in both is known by its id when it is delivered again.
"""
