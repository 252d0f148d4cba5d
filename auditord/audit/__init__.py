"""The completeness audit: a source's inventory against the record store.

* ``values``: request and answer; ``comparing``: the stored records of some jobs of the inventory;
  ``counting``: counts by day and site, and the ids that the inventory has named, on disk;
* ``auditing``: all of it, for one collector and one period.
"""
