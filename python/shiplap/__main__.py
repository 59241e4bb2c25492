"""The command line tool: a separate executable in this package."""

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the command line tool. `record` needs torch and runs here."""
    if sys.argv[1:2] == ["record"] and sys.argv[2:3] not in (["-h"], ["--help"]):
        from shiplap.record.__main__ import main as record

        sys.exit(record(sys.argv[2:]))
    program = str(pathlib.Path(__file__).parent / "bin" / "shiplap")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
