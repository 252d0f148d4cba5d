"""auditord: accounting of computing resources for HPC and HTC sites."""

__version__ = "1.0.0"
