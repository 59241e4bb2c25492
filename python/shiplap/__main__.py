"""The command line tool: a separate executable in this package."""

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the command line tool. `record` needs torch and runs here."""
    if sys.argv[1:2] == ["record"] and sys.argv[2:3] not in (["-h"], ["--help"]):
        from shiplap.record.__main__ import main as record

        sys.exit(record(sys.argv[2:]))
    if sys.argv[1:2] in (["run"], ["overlap"]):
        find_gemm_library()
    program = str(pathlib.Path(__file__).parent / "bin" / "shiplap")
    os.execv(program, [program, *sys.argv[1:]])


def find_gemm_library() -> None:
    """Lets the tool find pip's oneDNN where Python finds it, so that both multiply alike."""
    from shiplap import _gemm_library

    if library := _gemm_library.find():
        paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)


if __name__ == "__main__":
    main()
