"""``auditord import``: import the records of another accounting system with an importer from a hook module.

:mod:`~auditord.importing.writing` stores the records and the position in the source.
:mod:`~auditord.importing.comparing` then reads the source again and compares it with the store.
Only the list of commands names :mod:`~auditord.importing.command`; nothing else in the host uses this folder.
"""
