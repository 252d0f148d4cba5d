"""Moving in: the records of an AUDITOR, from wherever it has them, into our own store.

A :class:`~auditord.importing.source.Source` gives pages of texts. :mod:`~auditord.importing.writing` puts them into the
store and remembers how far it came; :mod:`~auditord.importing.comparing` reads the source once more and holds it
against what the store then has.
"""
