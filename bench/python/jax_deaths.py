"""Fault injection: do survivors report which process was killed? Prints one JSON object.

    PYTHONPATH=build/release/python python bench/python/jax_deaths.py
        [--json] [--times 20] [--seed 1] [--stopped]

Each time 3 or 4 processes of JAX take jitted steps with overlapped GEMMs, and a random one,
process 0 too, is killed at a random moment. JAX's coordinator is in this process, which outlives
them (python/tests/workers/jax_victims.py says why). A death counts if every survivor raised
RankFailed with the rank and the process, within the deadline, and ended by itself. With --stopped
it hangs instead (SIGSTOP); then the call must time out, and the ranks probe each other to find it.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))

from workers.jax_victims import death  # noqa: E402

import shiplap  # noqa: E402

DEADLINE = 10.0
STOPPED_DEADLINE = 2.0
PROBING = 2.0  # seconds that probes may take


def is_right(end, victim, stopped):
    if not end.names(victim) or end.code != 1:
        return False
    if stopped:
        return (end.error in ("CommTimeoutError", "RankFailed")
                and end.after < STOPPED_DEADLINE + PROBING)
    return end.error == "RankFailed" and end.after < DEADLINE


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stopped", action="store_true", help="SIGSTOP, not SIGKILL")
    given = parser.parse_args()
    moments = random.Random(given.seed)
    way, deadline = ("SIGSTOP", STOPPED_DEADLINE) if given.stopped else ("SIGKILL", DEADLINE)
    named, seconds, survivors, wrong = 0, [], 0, []
    for number in range(given.times):
        size = moments.choice([3, 4])
        victim = moments.randrange(size)
        story = death(size, victim, way, seed=moments.randrange(2**32), timeout=deadline)
        bad = [end for end in story.survivors if not is_right(end, victim, given.stopped)]
        named += not bad
        survivors += len(story.survivors)
        wrong += [{"death": number, "victim": victim, "rank": end.rank, "error": end.error,
                   "text": end.text, "code": end.code} for end in bad]
        seconds += [end.after for end in story.survivors if end.error]
        if not given.json:
            others = len(story.survivors)
            print(f"{number + 1:2}: process {victim} of {size}: "
                  f"{others - len(bad)} of {others} named it", flush=True)
    result = {"bench": "python/jax_deaths", "version": shiplap.__version__, "seed": given.seed,
              "way": way, "deaths": given.times, "named_by_all": named, "survivors": survivors,
              "named": survivors - len(wrong), "deadline_s": deadline,
              "to_exception_s": statistics.median(seconds) if seconds else None,
              "to_exception_s_max": max(seconds, default=None), "wrong": wrong}
    print(json.dumps(result, indent=1))
    return 0 if named == given.times else 1


if __name__ == "__main__":
    sys.exit(main())
