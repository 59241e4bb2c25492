"""shiplap record: records a training script as a plan, and checks it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass

from shiplap.record._answer import MODES, Recorded, RecordingError, record_script

_EXAMPLES = """
examples:
  shiplap record --world 8 -- python train.py --layers 4   record and check 8 ranks
  shiplap record -- torchrun --nproc-per-node 8 train.py   the same, with the launcher's flags
  shiplap record --world 8 -o step.plan train.py           name the plan

exit code: 0 sound, 1 not sound, 2 the script failed or a flag is wrong
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shiplap record",
        description="Record a training script as a plan, on fake tensors, and check it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--world", type=int, metavar="N", help="the number of ranks (that of torchrun)"
    )
    parser.add_argument(
        "--steps", type=int, default=2, metavar="N", help="optimizer steps; 0: all of them (2)"
    )
    parser.add_argument(
        "--ranks-per-node", type=int, default=8, metavar="N", help="GPUs of a node (8)"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="fake",
        help="fake: shapes without data (the default); gloo: all ranks for real, on the CPU",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="of a call with --mode gloo, in seconds (30)",
    )
    parser.add_argument("--cpu", action="store_true", help="the ranks have no GPUs")
    parser.add_argument(
        "--all", action="store_true", help="record every rank, also if few stand for all"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="ranks that run at a time (the number of cores)"
    )
    parser.add_argument(
        "-o", "--output", metavar="PLAN", help="the plan (the name of the script, .plan)"
    )
    parser.add_argument(
        "--allow", default="", metavar="CODES", help="errors that are accepted: D716,D721"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the script and its arguments"
    )
    return parser


@dataclass
class _Command:
    script: str  # or the name of a module
    arguments: list[str]
    is_module: bool = False
    world: int | None = None  # that of its launcher


def _command_of(words: list[str]) -> _Command:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise ValueError("name the script: shiplap record --world 8 -- python train.py")
    program = os.path.basename(words[0])
    if program == "torchrun":
        return _torchrun(words[1:])
    if program.startswith("python"):
        words = words[1:]
        if words[:2] == ["-m", "torch.distributed.run"]:
            return _torchrun(words[2:])
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words:
        raise ValueError("the command of python has no script")
    return _Command(words[0], words[1:], is_module)


def _torchrun(words: list[str]) -> _Command:
    sizes = {"nproc-per-node": "1", "nnodes": "1"}
    at = 0
    is_module = False
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").replace("_", "-").partition("=")
        is_module = is_module or name in ("m", "module")
        if not equals and name not in ("standalone", "no-python", "m", "module"):
            at += 1
            value = words[at] if at < len(words) else ""
        if name in sizes:
            sizes[name] = value.split(":")[-1]
        at += 1
    if at >= len(words):
        raise ValueError("the command of torchrun has no script")
    nodes, ranks = sizes["nnodes"], sizes["nproc-per-node"]
    world = int(nodes) * int(ranks) if nodes.isdigit() and ranks.isdigit() else None
    return _Command(words[at], words[at + 1 :], is_module, world)


def _record(options: argparse.Namespace) -> tuple[str, Recorded]:
    command = _command_of(options.command)
    script, world = command.script, options.world or command.world
    if world is None or world < 1:
        raise ValueError("give the number of ranks: --world 8")
    if not command.is_module and not os.path.isfile(script):
        raise ValueError(f"there is no file {script}")
    return script, record_script(
        script,
        command.arguments,
        world=world,
        is_module=command.is_module,
        steps=options.steps,
        ranks_per_node=options.ranks_per_node,
        devices=not options.cpu,
        all_ranks=options.all,
        jobs=options.jobs,
        mode=options.mode,
        timeout=options.timeout,
        progress=_progress if sys.stderr.isatty() else None,
    )


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        script, recorded = _record(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RecordingError as error:
        print(f"error: the script failed\n{error}", file=sys.stderr)
        return 2
    output = options.output or recorded.plan.name
    recorded.plan.save(output)
    report = recorded.check()
    allowed = {f.code for f in report.findings if f.code in options.allow.split(",")}
    errors = {f.code for f in report.findings if f.severity == "error"} - allowed
    sound = not errors and not recorded.group_errors and not recorded.incomplete
    if options.json:
        answer = {
            **report.to_dict(),
            **{key: value for key, value in vars(recorded).items() if key != "plan"},
        }
        answer.update(
            schema="shiplap.record/1",
            plan=output,
            sound=sound,
            traffic=[vars(r) for r in recorded.traffic],
        )
        print(json.dumps(answer, indent=2))
    else:
        print(f"{script}: {recorded.text()}")
        for error_text in recorded.group_errors:
            print(f"error: {error_text}")
        print(report.text().rstrip())
        if sound and allowed:
            print(f"sound except for {', '.join(sorted(allowed))} (--allow)")
    print(
        f"wrote {output}; next: shiplap show {output}, "
        f"shiplap simulate {output} (its communication alone)",
        file=sys.stderr,
    )
    return 0 if sound else 1


def _progress(done: int, total: int) -> None:
    print(
        f"\rrecorded {done} of {total} ranks",
        end="\n" if done == total else "",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
