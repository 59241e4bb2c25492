"""Draws, simulates and writes jobs."""

import os
import random
import time
from collections import Counter

from hung_jobs.answers import answer_of, describe
from hung_jobs.dumps import Dumper
from hung_jobs.faults import GLOO_KINDS, KINDS, MOVING, TWO_KINDS
from hung_jobs.faults.fault import Impossible, Injector
from hung_jobs.faults.visible import visible
from hung_jobs.files import draw_files, dump_folder, encode, write_answer, write_dumps
from hung_jobs.options import draw_options
from hung_jobs.program import BATCH, P2P
from hung_jobs.simulation import Simulation
from hung_jobs.steps import Job

TAIL_STEPS = 3  # after the last step that may have a fault


def make_job(seed, name, kind, args, out):
    """Simulates one job and writes it; returns its answer.

    Retries until the fault hangs and is visible.
    """
    for attempt in range(60):
        rng = random.Random(f"{seed}/{name}/{kind}/{attempt}")
        try:
            return attempt_job(rng, name, kind, args, out)
        except Impossible:
            continue
    raise RuntimeError(f"{name}: no job of kind {kind} after 60 attempts")


def attempt_job(rng, name, kind, args, out):
    """Draws one job and writes it, or raises Impossible."""
    base_kind = kind
    if kind == "truncated":
        base_kind = rng.choice(["stuck_before_world", "skipped", "wrong_size", "wrong_operation",
                                "crashed_no_dump", "swapped_in_group"])
    moving = base_kind in MOVING
    kinds = [base_kind]
    if args.faults == 2 and not moving:
        kinds = [rng.choice(TWO_KINDS), rng.choice(TWO_KINDS)]
    gloo = not moving and kind in GLOO_KINDS and len(kinds) == 1 and rng.random() < 0.12
    o = draw_options(rng, "stuck_before_sub" if len(kinds) == 2 else base_kind, args, gloo)
    job = Job(rng, o)
    per_step = len(job.step(job.world - 1, 0))
    target = args.entries or rng.choice([50, 80, 120, 200, 300])
    steps = max(2, min(40, target // max(1, per_step)))
    if len(kinds) == 1 and base_kind == "message_cycle_n" and job.world > 16:
        raise Impossible
    programs = fault_free(job, steps + TAIL_STEPS)
    section = 1 + rng.randrange(max(1, steps // 2), steps + 1)
    faults, no_dump, slow = [], set(), None
    if not moving:
        faults, no_dump = inject(rng, job, programs, section, kinds)
    if base_kind == "slow_rank":
        slow = rng.randrange(job.world)
        o["slow"] = {slow: rng.choice([6.0, 10.0, 30.0])}
        if per_step < 6:
            raise Impossible
    sim = simulate(job, programs, rng, o)
    if moving:
        if any(s != "end" for s in sim.stopped):
            raise RuntimeError(f"{name}: a healthy job hangs: {sim.stopped}")
    else:
        if any(s == "end" for s in sim.stopped):
            raise Impossible  # no hang, or only of some ranks
        if not all(visible(sim, f) for f in faults):
            raise Impossible
    o["no_dump"] = no_dump
    dumper = Dumper(job, sim, rng, o)
    dumper.moment(choose_moment(rng, sim, slow) if moving else None)
    files = draw_files(rng, dumper, args, kind, base_kind, faults, slow)
    answer = answer_of(name, kind, base_kind, dumper, files, faults, slow)
    write_dumps(rng, dumper, files, out, answer)
    write_answer(out, answer)
    return answer


def fault_free(job, steps):
    """The programs of all ranks, [rank][section]: the setup, the steps, the epilogue."""
    cache = {}
    programs = []
    for r in range(job.world):
        sections = [job.setup(r) if not job.o["late"] else []]
        for s in range(steps):
            key = (r, s % job.log_every, s % job.ckpt_every if job.ckpt_every else 0)
            if key not in cache:
                cache[key] = job.step(r, s)
            sections.append(list(cache[key]))
        sections.append(job.epilogue(r))
        programs.append(sections)
    return programs


def inject(rng, job, programs, section, kinds):
    """Edits the programs; returns the faults, with distinct culprits, and the ranks that die."""
    faults, used, no_dump = [], set(), set()
    for number, kind in enumerate(kinds):
        x = Injector(job, programs, rng, section, number)
        f = KINDS[kind](x, used)
        f.id = number
        faults.append(f)
        used |= set(f.culprits)
        no_dump |= x.no_dump
    return faults, no_dump


def simulate(job, programs, rng, o):
    """Runs the programs of all ranks."""
    return Simulation(job, [[i for s in p for i in s] for p in programs], rng, o).run()


def choose_moment(rng, sim, slow):
    """A moment at which the job moves.

    With a slow rank, one at which all other members of a collective wait for it.
    """
    t_end = max(x.t for rs in sim.records for x in rs)
    for _ in range(300):
        t = rng.uniform(0.3, 0.85) * t_end
        if slow is None:
            return t
        for slot in (s for g in sim.job.all_groups if slow in g.index for s in g.slots):
            mine = slot.members.get(slow)
            if mine is None or slot.done is None or mine.ready.t <= t or slot.done.t < t:
                continue
            if all(m.ready.t < t - 0.002 for r, m in slot.members.items() if r != slow):
                return t
    raise Impossible


def job_kinds(faults):
    """The kinds of jobs with this many faults, in the order in which they are made."""
    kinds = sorted(KINDS) + ["truncated"]
    if faults == 0:
        return ["healthy", "slow_rank"]
    if faults == 2:
        return ["two_faults"]
    return kinds + MOVING


def generate(args, out, jobs, seed, quiet=False):
    """Makes jobs, one kind after the other; returns how many of each kind."""
    kinds = [args.kind] if args.kind else job_kinds(args.faults)
    counts, entries, start = Counter(), 0, time.time()
    for n in range(jobs):
        kind = kinds[n % len(kinds)]
        answer = make_job(seed, f"job_{n:05d}_{kind}", kind, args, out)
        counts[answer["kind"]] += 1
        entries += answer["entries"]
    if not quiet:
        seconds = time.time() - start
        for kind, count in sorted(counts.items()):
            print(f"{kind:26s} {count}")
        print(f"{jobs} jobs, {entries} entries in {seconds:.1f} s")
    return counts


def scale_job(args, out):
    """One large job for speed tests: RANKSxENTRIES, rank 5 skips one collective near the end."""
    ranks, entries = (int(x) for x in args.scale.lower().split("x"))
    name = f"scale_{ranks}x{entries}"
    rng = random.Random(f"{args.seed}/{name}")
    tp = 8 if ranks % 8 == 0 and ranks > 8 else 2
    pp = 4 if ranks % (4 * tp) == 0 and ranks > 4 * tp else 1
    dims = {"dp": ranks // tp} if pp == 1 else {"pp": pp, "dp": ranks // tp // pp}
    dims["tp"] = tp
    o = {"mesh": "dp_tp" if pp == 1 else "dp_pp_tp", "dims": dims, "gloo": False,
         "embedding": False, "eager": 0, "queue": 64, "capacity": entries, "late": True,
         "id_offset": True, "skew": 1e-3, "timeout": 600000, "version": "2.10",
         "mixed_versions": False, "comm_state": False, "no_dump": set(), "slow": {},
         "timing": False}
    job = Job(rng, o)
    job.naming = "int"
    job.layers, job.log_every, job.ckpt_every = 4, 1, 0
    steps = [job.step(r, 0) for r in range(ranks)]
    fewest = min(sum(len(i.parts) + 1 if i.kind == BATCH else i.kind <= P2P for i in s)
                 for s in steps)
    count = entries // fewest + 4
    programs = [[[]] + [s] * count + [job.epilogue(r)] for r, s in enumerate(steps)]
    for _ in range(40):
        edited = [list(p) for p in programs]
        x = Injector(job, edited, rng, count - 3, 0)
        f = KINDS["skipped"](x, set(range(ranks)) - {5 % ranks})
        f.id = 0
        sim = simulate(job, edited, rng, o)
        if "end" not in sim.stopped and visible(sim, f):
            break
    dumper = Dumper(job, sim, rng, o)
    dumper.moment(None)
    folder = dump_folder(out, name)
    formats = {r: "json" if args.format == "json" else "pickle" for r in range(ranks)}
    total = size = 0
    for r in range(ranks):
        dump = dumper.of(r)
        total += len(dump["entries"])
        data = encode(dump, formats[r])
        size += len(data)
        with open(os.path.join(folder, f"nccl_trace_rank_{r}"), "wb") as file:
            file.write(data)
    answer = {"name": name, "kind": "skipped", "hang": True, "world": ranks, "mesh": dims,
              "backend": "nccl", "faults": [describe(f, dumper, formats, [])], "why": f.why,
              "missing_dumps": [], "truncated_dumps": [], "entries": total}
    write_answer(out, answer)
    print(f"{name}: {total} entries, {size / 1e6:.0f} MB")
