"""The page that the daemon serves to browsers, made on the server from the same questions and sums as the API's.

* :mod:`routes` puts the parts together; :mod:`visitors`: who sees what.
* :mod:`overview`, :mod:`usage`, :mod:`my_usage`, :mod:`jobs`, :mod:`operations`, :mod:`panels`, :mod:`manual`: one
  module for each page; :mod:`late`: the frame of one that takes long.
* :mod:`login`, :mod:`issuers`, :mod:`forms`: who visitors are, and that a form was made for them.
* :mod:`daemon_actions`, :mod:`background_runs`, :mod:`record_changes`: acts on the daemon and on records.
* :mod:`query_string`, :mod:`job_filters`: views in URLs; :mod:`figures`: reports over the records that a visitor
  may see.
* :mod:`charts`, :mod:`heat_map`: SVG, of the parts in :mod:`drawing`; :mod:`usage_charts`: of reports; :mod:`sheet`,
  :mod:`usage_files`: pictures and figures as files; :mod:`panel_parts`: of panels.
* :mod:`numbers`: numbers and times for people; :mod:`rendering`: templates, texts, headers.
* :mod:`assets` and ``static``: style sheets and script, which the page also works without.

Templates hold no logic and no text: texts are in ``texts/en.json``, so that another language is another file.
"""

from auditord.web.page.routes import Parts, page_routes

__all__ = ["Parts", "page_routes"]
