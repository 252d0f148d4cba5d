"""The work of instances: when they run, under which limits, and what becomes of what they make.

* :mod:`clock`: ticks, and the turn of an instance.
* :mod:`runs`: one run inside its error boundary, the loops of runs, the pauses after failures, and what notes the ends.
* :mod:`instances`: collectors and plugins of the configuration, ready to run.
* :mod:`senders`: the send-queue on its way to each destination.
* :mod:`demands`, :mod:`retries`, :mod:`record_editor`: requests of operators.
* :mod:`gauges`: regular looks at spool and store for the metrics.
"""
