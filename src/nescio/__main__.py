"""The entry point of the command line: `nescio`, and `python -m nescio`."""

import sys


def run() -> None:
    """Run the command line. Ctrl-C ends it with one line, also while modules are imported."""
    try:
        from nescio.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    run()
