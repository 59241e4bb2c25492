"""Tests in an environment with nothing but Python and the wheel; run by tools/check-wheel."""

import argparse
import importlib
import importlib.util
import statistics
import subprocess
import sys
import time


def seconds_of(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun


def check_import_time(most: float) -> None:
    """Interleaved, so that both see the same machine."""
    times = [(seconds_of("import shiplap"), seconds_of("pass")) for _ in range(7)]
    taken = statistics.median(with_it - without for with_it, without in times)
    print(f"import shiplap: {taken:.3f} s")
    assert taken < most, f"import takes {taken:.3f} s, more than {most} s"


def check_absence() -> None:
    import shiplap

    for name in ("numpy", "torch", "jax"):
        assert importlib.util.find_spec(name) is None, f"{name} is there, so this proves nothing"
    for name in ("torch", "jax"):
        try:
            importlib.import_module(f"shiplap.{name}")
        except ImportError as error:
            assert "pip install" in str(error) and name in str(error), error
            print(f"without {name}: {error}")
        else:
            raise AssertionError(f"shiplap.{name} works without {name}")
    assert shiplap.check(shiplap.train("1f1b", ranks=4, layers=4, batch=8)).sound
    assert shiplap.simulate(shiplap.train("ddp", ranks=8, batch=8)).total_s > 0
    assert shiplap.run(shiplap.train("fsdp", ranks=2, batch=2, for_run=True), steps=2).good


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-seconds", type=float, required=True)
    options = parser.parse_args()
    check_import_time(options.max_seconds)
    check_absence()


if __name__ == "__main__":
    main()
