"""Records of another accounting system, as an importer of a hook module gives them, into our own store.

:mod:`~auditord.importing.writing` puts them into the store and remembers the position;
:mod:`~auditord.importing.comparing` reads the source once more and compares it with what the store then has.
``auditord import`` calls both.
"""
