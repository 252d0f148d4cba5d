"""auditord: accounting of computing resources for HPC and HTC sites."""

__version__ = "0.1.0"
