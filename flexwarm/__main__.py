"""The ``flexwarm`` command, and ``python -m flexwarm``."""

import signal


def main() -> None:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command has its own handlers, Ctrl-C simply ends it: there is nothing to clean up and nothing to say.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flexwarm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
