"""``auditord import``: the records of another accounting system, as an importer of a hook module gives them.

:mod:`~auditord.importing.writing` puts them into the store and remembers the position;
:mod:`~auditord.importing.comparing` reads the source once more and compares it with what the store then has.
The list of commands names :mod:`~auditord.importing.command`, and nothing else in the host knows this folder.
"""
