"""The entry point of the command line: `nescio`, and `python -m nescio`."""

import sys


def run() -> None:
    """Run the command line. Ctrl-C ends it with one line, also while modules are imported."""
    try:
        import os

        # onnxruntime sends events about models to its maker and writes an identifier to the user's
        # folder, unless this is set before it starts. Set it to 0 to allow that.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        from nescio.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    run()
