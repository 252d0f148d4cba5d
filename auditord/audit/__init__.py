"""The completeness audit: a source's inventory against the record store, for one collector and one period.

``values`` has request and answer; ``auditing`` the audit; ``site_reports`` what the sites of a hub say they have.
"""
