"""The page that the daemon serves to browsers. It runs on the server and asks the same questions as the API.

* :mod:`routes` puts the parts together and makes error pages.
* :mod:`overview`, :mod:`usage`, :mod:`jobs`, :mod:`operations`, :mod:`panels`, :mod:`manual`: the pages, and what
  visitors can do on them; :mod:`login`: logins.
* :mod:`query_string`: the URLs of views.
* :mod:`figures`: reports over the records that a visitor may see; :mod:`charts`: SVG; :mod:`numbers`: formatting.
* :mod:`rendering` and ``static``: templates, texts, headers, what each visitor sees, forms, style sheets and a
  script, which the page can do without.

Templates contain no logic and no text. Texts are in ``texts/en.json``; another language is another file.
"""

from auditord.web.page.routes import Parts, page_routes

__all__ = ["Parts", "page_routes"]
