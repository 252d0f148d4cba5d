"""The work of instances: when they run, under which limits, and where their records go.

* :mod:`runs`: the clock, one run inside its error boundary, pauses after failures, reports.
* :mod:`instances`: collectors and plugins of the configuration, ready to run.
* :mod:`loops`: the loop of each instance, and reloading.
* :mod:`senders`: deliver the send-queue to each destination.
* :mod:`demands`, :mod:`audits`: requests of operators; the nightly audit.
* :mod:`gauges`: metrics of spool, store and host; the daemon's state for other daemons.
"""
