"""Reports usage to EGI's accounting, APEL."""
