"""The HTTP server: AUDITOR's wire contract at the root and our API under ``/api/v1``.

* :mod:`server <auditord.web.server>` assembles routes, limits and listeners.
* :mod:`listeners`, :mod:`connections`, :mod:`hosts`, :mod:`proxies` accept connections and check requests.
* :mod:`dispatch`: routing, error handling and counts of requests; :mod:`metrics`: ``/metrics`` and ``/health_check``.
* :mod:`access`: authorisation, around the handlers. The control socket for root and the daemon's user is in
  :mod:`listeners`.
* :mod:`bodies`, :mod:`elements`: request bodies; :mod:`answers`: complete responses; :mod:`streams`: streamed ones, and
  each principal's share of memory, reads and requests.
* :mod:`wire`: AUDITOR's routes; :mod:`record_query`: their query strings.
* :mod:`api`: the routes of ``/api/v1`` with their declarations for ``/openapi.json``; :mod:`page`: those for browsers.
"""
