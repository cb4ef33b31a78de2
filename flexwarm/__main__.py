"""``python -m flexwarm``."""

from flexwarm.cli.main import main

if __name__ == "__main__":
    main()
