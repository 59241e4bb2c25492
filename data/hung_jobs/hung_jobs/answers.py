"""The right answer of a job: the content of answer.json."""

from hung_jobs.events import unresolved


def answer_of(name, kind, base_kind, dumper, files, faults, slow):
    """The answer of a job whose dumps are not written yet; `slow` is its slow rank or None."""
    job, o = dumper.job, dumper.o
    moving = not faults
    answer = {"name": name, "kind": kind if len(faults) < 2 else "two_faults", "hang": not moving,
              "world": job.world, "mesh": dict(job.dims), "mesh_name": job.kind_of_mesh,
              "backend": "gloo" if o["gloo"] else "nccl", "faults": [], "why": "",
              "missing_dumps": sorted(files.removed), "truncated_dumps": files.truncated,
              "dumped_at_ns": {}, "file_ranks": {}, "format": files.form, "version": o["version"],
              "names": files.style, "capacity": o["capacity"], "entries": 0,
              "quirks": quirks(dumper, files)}
    if kind == "truncated":
        answer["base_kind"] = base_kind
    for f in faults:
        answer["faults"].append(describe(f, dumper, files.formats, files.removed))
    if slow is not None:
        factor = o["slow"][slow]
        answer["faults"].append(
            {"kind": "slow_rank", "culprits": [slow], "acceptable": [[]], "class": "slow",
             "line": None, "waiting_line": None, "identifiable": "unique",
             "why": f"All ranks move; rank {slow} computes {factor:g} times longer."})
    elif moving:
        answer["faults"].append(
            {"kind": "healthy", "culprits": [], "acceptable": [], "class": "none",
             "line": None, "waiting_line": None, "identifiable": "none",
             "why": "A dump taken in the middle of a step; all ranks move."})
    answer["why"] = " ".join(f["why"] for f in answer["faults"])
    return answer


def quirks(dumper, files):
    """The names of the properties that make the dumps harder to read."""
    o = dumper.o
    have = {"gloo": o["gloo"],
            "mixed_versions": o["mixed_versions"],
            "evicted_history": o["late"],
            "record_id_offset": o["late"] and o["id_offset"],
            "eager": o["eager"] > 0,
            "host_names": files.style == "host",
            "truncated": bool(files.truncated),
            "no_reducer_frames": dumper.frames.empty_reducer}
    return sorted(name for name, on in have.items() if on)


def describe(f, dumper, formats, removed):
    """The entry of answer["faults"] for one fault."""
    sim, line_of = dumper.sim, dumper.frames.line
    waiting = first_waiting(f, dumper, formats, removed)
    with_frames = all(formats[c] == "pickle" for c in f.culprits)
    d = {"kind": f.kind, "culprits": f.culprits, "acceptable": f.acceptable, "class": f.cls,
         "identifiable": f.identifiable, "line": line_of(f.line) if with_frames else None,
         "waiting_line": line_of(waiting.i.pt) if waiting else None, "why": f.why}
    if f.divergence:
        d["divergence"] = f.divergence
        d["divergence_also"] = f.also
    if f.skipped_pt and any(x == "pickle" for x in formats.values()):
        d["skipped_line"] = line_of(f.skipped_pt)
    if f.cls == "cpu_stuck" and with_frames:
        d["last_lines"] = {str(c): line_of(sim.records[c][-1].i.pt) if sim.records[c] else None
                           for c in f.culprits}
    return d


def first_waiting(f, dumper, formats, removed):
    """The first record of another rank, in a dump with frames, that waits with a culprit."""
    sim, culprits = dumper.sim, set(f.culprits)
    waiting = None
    for r in range(sim.world):
        if r in culprits and f.cls not in ("device_stuck", "message_cycle"):
            continue
        if r in removed or r in dumper.o["no_dump"] or formats[r] == "json":
            continue
        for rec in sim.records[r]:
            if rec.work and unresolved(rec.end) and not unresolved(rec.ready) and \
                    culprits & set(rec.gid.ranks):
                if waiting is None or rec.t < waiting.t:
                    waiting = rec
                break
    return waiting
