"""The HTTP server: AUDITOR's wire contract at the root and our API under ``/api/v1``.

* :mod:`server <auditord.web.server>` puts the parts together: routes, limits, listeners.
* :mod:`listeners`, :mod:`connections`, :mod:`hosts`, :mod:`proxies`: from a socket to a request that may be answered.
* :mod:`dispatch`: from a request to its handler, and the handling of errors; :mod:`metrics` counts.
* :mod:`access`: authorisation, around the handlers; the control socket, for the owner only, is in :mod:`listeners`.
* :mod:`bodies`, :mod:`elements`: request bodies; :mod:`answers`: responses; :mod:`streams`: long ones, and each
  principal's share of memory, places and requests.
* :mod:`wire`: AUDITOR's routes; :mod:`record_query`: their query strings.
* :mod:`api`: the routes of ``/api/v1``, each with its declaration for ``/openapi.json``.
"""
