"""The page that the daemon serves to browsers, made on the server from the same questions and sums as the API's.

* :mod:`routes` puts the parts together; :mod:`visitors`: who sees what.
* :mod:`overview`, :mod:`usage`, :mod:`my`, :mod:`jobs`, :mod:`operations`: one module for each page.
* :mod:`login`, :mod:`issuers`, :mod:`forms`: who visitors are, and that a form was made for them.
* :mod:`operating`, :mod:`asked_runs`, :mod:`changing`: acts on the daemon and on records.
* :mod:`asking`: the query string of a view; :mod:`figures`: reports over the records that a visitor may see.
* :mod:`charts`: SVG; :mod:`numbers`: numbers and times for people; :mod:`rendering`: templates, texts, headers.
* :mod:`assets` and ``static``: style sheet and script, which the page also works without.

Templates hold no logic and no text: texts are in ``texts/en.json``, so that another language is another file.
"""

from auditord.web.page.routes import Parts, page_routes

__all__ = ["Parts", "page_routes"]
