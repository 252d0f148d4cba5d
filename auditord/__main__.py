"""Run the command line for ``python -m auditord``."""

from auditord.cli import main

if __name__ == "__main__":
    main()
