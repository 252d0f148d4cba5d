"""The manual: a Markdown file per topic beside this module, and references that parts of the program write when asked.

Read by ``auditord manual``, by the page and, as man pages, by ``man``. To add a file, name it in ``index.md``.
"""

from auditord.manual.html import as_html
from auditord.manual.topics import SearchHit, Topic, find, text_of, topics

__all__ = ["SearchHit", "Topic", "as_html", "find", "text_of", "topics"]
