"""The HTTP server: AUDITOR's wire contract at the root and our own API under ``/api/v1``.

* :mod:`server <auditord.web.server>` puts the parts together: routes, limits, listeners.
* :mod:`listeners`, :mod:`tls`, :mod:`connections`, :mod:`hosts`: from a socket to a request that may be answered.
* :mod:`dispatch`: from a request to its handler, and what becomes of a handler's fault; :mod:`metrics` counts.
* :mod:`access`: authorisation, around the handlers; :mod:`control`: the control socket, for the owner only.
* :mod:`limits`: each principal's share of memory, places and requests; :mod:`bodies`, :mod:`elements`: bodies in;
  :mod:`answers`, :mod:`streams`: answers out; :mod:`reading`: places for those that read the store.
* :mod:`wire`, :mod:`monitoring`: AUDITOR's routes; :mod:`record_query`: their query strings.
* :mod:`api`: the routes of ``/api/v1``, each with its declaration for ``/openapi.json``.
"""
