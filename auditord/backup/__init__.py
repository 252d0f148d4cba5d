"""Back up record store and spool as of one moment, and restore them.

Entries flow from the spool to the store, and clients' records flow from the store's outbox to the spool, for senders
that forward them. A backup copies the spool first and the store later, and no entry leaves the outbox between the two
copies. So each entry is in at least one of them. The store recognises an entry that is in both by its id.
"""
