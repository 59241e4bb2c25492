#!/usr/bin/env python3
"""Generates hung training jobs: flight-recorder dumps of all ranks plus the right answer.

Run:  python3 generate.py --out DIR --seed 1 --jobs 1000
      python3 generate.py --out DIR --scale 256x2000
      python3 generate.py --self-check
Standard library only. The work is done by the package `hung_jobs` in this folder.
"""

import argparse
import sys

from hung_jobs.faults import KINDS
from hung_jobs.jobs import generate, scale_job
from hung_jobs.self_check import self_check


def main():
    """Parses the command line and runs one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", help="folder to write; one folder per job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--faults", type=int, choices=[0, 1, 2], default=1,
                        help="faults per job; 0: healthy or slow")
    parser.add_argument("--kind", choices=sorted(KINDS) + ["truncated", "healthy", "slow_rank"],
                        help="only this kind")
    parser.add_argument("--missing", type=float, default=0.0,
                        help="fraction of the dumps of innocent ranks to remove")
    parser.add_argument("--last", type=int, default=0,
                        help="ring buffer size: keep the last N entries of each rank")
    parser.add_argument("--world-max", type=int, default=64)
    parser.add_argument("--entries", type=int, default=0,
                        help="about this many calls per rank before the fault")
    parser.add_argument("--format", choices=["pickle", "json", "mixed"], default="mixed")
    parser.add_argument("--timing", action="store_true",
                        help="dumps have durations, as with TORCH_NCCL_ENABLE_TIMING=1")
    parser.add_argument("--scale", help="write one large job, e.g. 256x2000 (ranks x entries)")
    parser.add_argument("--self-check", action="store_true",
                        help="generate --jobs jobs of each setting and check them")
    args = parser.parse_args()
    if args.self_check:
        sys.exit(self_check(args))
    if not args.out:
        parser.error("--out is required")
    if args.scale:
        scale_job(args, args.out)
    else:
        generate(args, args.out, args.jobs, args.seed)


if __name__ == "__main__":
    main()
