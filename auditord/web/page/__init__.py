"""The page that the daemon serves to browsers. It is rendered on the server from the same queries as the API.

* :mod:`routes` assembles the page and makes error pages.
* :mod:`overview`, :mod:`usage`, :mod:`jobs`, :mod:`operations`, :mod:`panels`, :mod:`manual`: the pages and their
  actions; :mod:`login`: logins.
* :mod:`query_string`: the URLs of views.
* :mod:`figures`: reports over the records that a visitor may see; :mod:`charts`: SVG.
* :mod:`rendering` and ``static``: templates, headers, navigation, forms, style sheets and an optional script.
"""

from auditord.web.page.routes import Parts, page_routes

__all__ = ["Parts", "page_routes"]
