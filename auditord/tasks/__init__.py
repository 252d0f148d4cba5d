"""The work of instances: when they run, under which limits, and what becomes of what they make."""
