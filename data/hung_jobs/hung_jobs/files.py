"""The files of a job: which ranks have a dump, in which form and under which name."""

import json
import os
import pickle
from dataclasses import dataclass

from hung_jobs.dumps import to_json
from hung_jobs.faults.fault import Impossible


@dataclass
class Files:
    """The dumps of a job as files."""

    form: str  # "pickle", "json" or "per_file"
    formats: dict  # {rank: "pickle" or "json"}
    ranks: list  # those that have a file
    removed: list  # ranks whose dump was removed on purpose
    truncated: list  # ranks whose file is cut
    style: str  # of the names
    names: dict  # {rank: file name}


def draw_files(rng, dumper, args, kind, base_kind, faults, slow):
    """Draws the files; removes only dumps without which the answer can still be found.

    `kind`: "truncated" cuts a file; `base_kind`: of the fault; `slow`: the slow rank or None.
    """
    world, no_dump = dumper.job.world, dumper.o["no_dump"]
    form = args.format
    if form == "mixed":
        form = rng.choices(["pickle", "json", "per_file"], [75, 20, 5])[0]
    formats = {r: form if form != "per_file" else rng.choice(["pickle", "json"])
               for r in range(world)}
    ranks = [r for r in range(world) if r not in no_dump]
    evidence = [set(f.group) for f in faults]
    removed, truncated = [], []

    def expendable(r):
        if any(r in f.culprits or [r] in f.acceptable for f in faults) or r == slow:
            return False
        return all(r not in e or len(e - set(removed) - {r}) >= 4 for e in evidence)

    if args.missing and not no_dump and base_kind != "device_stuck_all":
        count = max(1, round(world * args.missing))
        order = list(ranks)
        rng.shuffle(order)
        for r in order:
            if len(removed) < count and expendable(r):
                removed.append(r)
    if kind == "truncated":
        order = [r for r in ranks if r not in removed and expendable(r)]
        if not order:
            raise Impossible
        truncated = [rng.choice(order)]
    ranks = [r for r in ranks if r not in removed]
    if len(ranks) < 2:
        raise Impossible
    style, names = file_names(rng, dumper, ranks, base_kind, formats)
    if style == "host" and (no_dump or removed or truncated):
        style = "nccl"
        names = {r: trace_name("nccl", r, formats[r]) for r in ranks}
    return Files(form, formats, ranks, removed, truncated, style, names)


def trace_name(library, r, form):
    """The name that torch gives to a file."""
    return f"{library}_trace_rank_{r}" + (".json" if form == "json" else "")


def file_names(rng, dumper, ranks, kind, formats):
    """(style, {rank: file name}).

    A name without the rank is used only where the groups of the dump determine the rank.
    """
    style = rng.choice(["nccl"] * 5 + ["comm_lib"] * 3 + ["plain", "host_rank", "host", "host"])
    if style == "host" and (dumper.o["gloo"] or kind == "membership" or
                            not all(determined(dumper, r) for r in ranks)):
        style = "nccl"
    names = {}
    order = list(range(len(ranks)))
    rng.shuffle(order)
    for k, r in enumerate(ranks):
        ext = ".json" if formats[r] == "json" else ".pkl"
        if style in ("nccl", "comm_lib"):
            name = trace_name(style, r, formats[r])
        elif style == "plain":
            name = f"rank{r:03d}{ext}"
        elif style == "host_rank":
            name = f"host{r // 8}_rank{r}_pid{rng.randrange(1000, 99999)}{ext}"
        else:
            name = f"host{order[k]}_pid{rng.randrange(1000, 99999)}{ext}"
        names[r] = name
    return style, names


def determined(dumper, r):
    """Whether r is the only rank in all groups that its dump shows."""
    common = None
    for g in dumper.job.groups_of[r]:
        if any(x.gid is g for x in dumper.sim.records[r] if x.t <= dumper.at[r]):
            common = set(g.ranks) if common is None else common & set(g.ranks)
    return common == {r}


def dump_folder(out, name):
    """The folder of the dumps of a job, created if need be."""
    folder = os.path.join(out, name, "dumps")
    os.makedirs(folder, exist_ok=True)
    return folder


def encode(dump, form):
    """The bytes of a dump."""
    return to_json(dump) if form == "json" else pickle.dumps(dump, protocol=2)


def write_dumps(rng, dumper, files, out, answer):
    """Writes the dumps, with the times of the ranks as file times; notes both in `answer`."""
    folder = dump_folder(out, answer["name"])
    for r in files.ranks:
        name = files.names[r]
        dump = dumper.of(r)
        answer["entries"] += len(dump["entries"])
        data = encode(dump, files.formats[r])
        if r in files.truncated:
            data = data[:int(len(data) * rng.uniform(0.2, 0.95))]
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        ns = int((dumper.at[r] + dumper.skew[r]) * 1e9) + dumper.t0
        os.utime(path, ns=(ns, ns))
        answer["dumped_at_ns"][name] = ns
        answer["file_ranks"][name] = r


def write_answer(out, answer):
    """Writes answer.json."""
    path = os.path.join(out, answer["name"], "answer.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(answer, file, indent=1)
        file.write("\n")
