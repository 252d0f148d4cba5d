"""The completeness audit: a source's inventory against the record store, for one collector and one period.

``values`` has the request and the report, ``auditing`` the audit itself, and ``site_reports`` the comparison with the
sums that the sites of a hub report.
"""
