"""The completeness audit: a source's inventory against the record store, for one collector and one period.

``values`` has the request and the report, ``auditing`` the audit, and ``site_reports`` what the sites of a hub report.
"""
