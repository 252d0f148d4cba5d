"""``python -m auditord``: the command line."""

from auditord.cli import main

if __name__ == "__main__":
    main()
