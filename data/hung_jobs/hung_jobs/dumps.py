"""The flight-recorder dumps of a simulated job, as torch writes them."""

import json
import math
import random

from hung_jobs.events import unresolved
from hung_jobs.frames import Frames
from hung_jobs.program import COLL, P2P

BASE_NS = 1_760_000_000_000_000_000  # jobs start at this time or later
FOLDERS = ["/app/", "/workspace/llm/", "/job/train/", "/opt/ml/code/"]  # of training scripts


class Dumper:
    """Writes the records of a simulation as the dumps of its ranks.

    `at[RANK]` is the time of a rank's dump and `skew[RANK]` the error of its clock; both need
    `moment` first. `base` and `group_base` are what counters start at where the history is evicted.
    """

    def __init__(self, job, sim, rng, o):
        self.job, self.sim, self.rng, self.o = job, sim, rng, o
        w = job.world
        late = o["late"]
        self.base = rng.randrange(10_000, 900_000) if late else 0
        self.id_base = [0] * w
        if late:
            self.id_base = [self.base * 3 + (rng.randrange(0, 500) if o["id_offset"] else 0)
                            for _ in range(w)]
        self.gbase = {}
        self.frames = Frames(rng, rng.random() < 0.3, rng.choice(FOLDERS))
        self.skew = [rng.gauss(0, o["skew"]) for _ in range(w)]
        self.t0 = BASE_NS + rng.randrange(10**16)
        self.timeout = o["timeout"]
        self.thread = [str(140000000000000 + rng.randrange(10**12)) for _ in range(w)]
        self.version = [o["version"]] * w
        if o["mixed_versions"]:
            self.version = [rng.choice([o["version"], "2.9", "2.10"]) for _ in range(w)]

    def group_base(self, r, g, which):
        """What a counter of a group starts at: "c" (collectives), "p" (messages) or "o" (both)."""
        if not self.o["late"]:
            return 0
        key = (g.name, g.ranks) if which == "c" else (g.name, r, which)
        if key not in self.gbase:
            self.gbase[key] = random.Random(f"{self.base}{key}").randrange(1000, 500_000)
        return self.gbase[key]

    def moment(self, moving):
        """Sets the time of each rank's dump, and which record timed out first.

        `moving`: the time of the dumps of a job that moves, else None.
        """
        sim, rng = self.sim, self.rng
        self.timed_out = None
        if moving is not None:
            self.at = [moving + rng.uniform(0, 0.0005) for _ in range(sim.world)]
            return
        first = None
        for r in range(sim.world):
            if r in self.o["no_dump"]:
                continue
            for rec in sim.records[r]:
                if rec.work and unresolved(rec.end):
                    if first is None or rec.t < first[0]:
                        first = (rec.t, r, rec)
                    break
        t = first[0] + self.timeout / 1000
        self.at = [t + rng.uniform(0.05, 15.0) for _ in range(sim.world)]
        self.at[first[1]] = t + 0.05
        if rng.random() < 0.5 and not self.o["gloo"]:
            self.timed_out = first[2]

    def of(self, r):
        """The dump of rank r as a dict, as torch writes it into a pickle."""
        job, sim, o = self.job, self.sim, self.o
        T, skew, t0 = self.at[r], self.skew[r], self.t0
        gloo = o["gloo"]
        lib = "gloo:" if gloo else "nccl:"
        minor = minor_of(self.version[r])
        phase = random.Random(r).random() * 0.1
        groups = job.groups_of[r]
        local = {g: k for k, g in enumerate(groups)}
        records = [x for x in sim.records[r] if x.t <= T]
        status, used = {}, []
        skip = max(0, len(records) - o["capacity"])
        entries = []
        of = self.frames.of
        names = {}
        started_at = int((T + skew) * 1e9) + t0
        bases = {g: (self.group_base(r, g, "c"), self.group_base(r, g, "p"),
                     self.group_base(r, g, "o")) for g in groups}
        thread = self.thread[r]
        for n, rec in enumerate(records):
            i, g = rec.i, rec.gid
            cb, pb, ob = bases[g]
            p2p = i.kind != COLL
            ready, end = rec.ready, rec.end
            started = rec.work and ready.t is not None and ready.t <= T
            completed = rec.work and end.t is not None and end.t <= T
            seen = None
            if completed:
                seen = math.ceil((end.t - phase) * 10) / 10 + phase
            retired = completed and seen <= T or rec is self.timed_out
            if rec.work:
                seq = rec.pseq + pb if p2p else rec.cseq + cb
                st = status.get(g)
                if st is None:
                    st = status[g] = [-1, -1, -1]
                    used.append(g)
                st[0] = seq
                if started and not gloo and (ready.t + 0.1 < T):
                    st[1] = seq
                if completed and (gloo or seen <= T):
                    st[2] = seq
            if n < skip:
                continue
            if rec.part is not None:
                op, peer, size, dt = rec.part
                me = g.index[r]
                name = f"{lib}{op} {me}{'->' if op == 'send' else '<-'}{peer}"
                ins, outs, dts, fop = [list(size)], [list(size)], [dt], "b" + op
            else:
                op = i.op
                if i.kind == P2P:
                    name = f"{lib}{op} {g.index[r]}{'->' if op == 'send' else '<-'}{i.peer}"
                else:
                    name = names.get(op)
                    if name is None:
                        name = names[op] = lib + op
                ins, outs = [list(x) for x in i.ins], [list(x) for x in i.outs]
                dts, fop = [i.dt] if i.dt and ins else [], op
                if minor <= 3 and op == "all_to_all":
                    ins, outs = [], []
            if completed and not gloo:
                if seen <= T:
                    c_ns = int((seen + skew) * 1e9) + t0
                    s_ns = c_ns - 310
                else:
                    c_ns = s_ns = started_at
                state = "completed"
            elif started and not gloo:
                s_ns, c_ns, state = started_at, None, "started"
            else:
                s_ns = c_ns = None
                state = "scheduled"
            e = {"frames": list(of(fop, i.pt)), "record_id": n + self.id_base[r], "pg_id": local[g],
                 "process_group": (g.name, g.desc)}
            if minor >= 9:
                autograd = i.pt and i.pt[:2] == "b."
                e["thread_name"] = "pt_autograd_0" if autograd else "pt_main_thread"
                e["thread_id"] = thread
            e["collective_seq_id"] = rec.cseq + cb
            e["p2p_seq_id"] = rec.pseq + pb
            e["op_id"] = rec.opid + ob
            e["profiling_name"] = name
            e["time_created_ns"] = int((rec.t + skew) * 1e9) + t0
            e["input_sizes"] = ins
            e["input_dtypes"] = dts
            e["output_sizes"] = outs
            e["output_dtypes"] = list(dts)
            e["state"] = state
            e["time_discovered_started_ns"] = s_ns
            e["time_discovered_completed_ns"] = c_ns
            if o["timing"] and completed and not gloo and rec.work:
                e["duration_ms"] = (end.t - ready.t) * 1000
            e["retired"] = bool(retired)
            e["timeout_ms"] = self.timeout
            e["is_p2p"] = p2p
            entries.append(e)
        if gloo:
            last = groups[-1]
            config = {"": {"name": "", "desc": "", "ranks": str(list(range(len(last))))}}
        else:
            config = {g.name: {"name": g.name, "desc": g.desc, "ranks": str(list(g.ranks))}
                      for g in groups if g in status}
        dump = {"version": self.version[r],
                "pg_config": config,
                "comm_lib_version" if minor >= 10 else "nccl_version": "" if gloo else "2.27.5",
                "pg_status": {str(local[g]): {"last_enqueued_collective": s[0],
                                              "last_started_collective": s[1],
                                              "last_completed_collective": s[2]}
                              for g, s in status.items()},
                "entries": entries}
        if o["comm_state"]:
            dump["nccl_comm_state"] = {
                f"0x7f{k:010x}": {"rank": str(g.index[r]), "nranks": str(len(g))}
                for k, g in enumerate(used)}
        return dump


def minor_of(version):
    """The minor number of a version of the dump format: 10 of "2.10"."""
    return int(version.split(".")[1])


def to_json(dump):
    """The JSON form of a dump, as torch writes it.

    No frames, 0 for None, pg_status values are strings, no "entries" when there are none.
    """
    d = dict(dump)
    d["pg_status"] = {k: {a: str(b) for a, b in v.items()} for k, v in d["pg_status"].items()}
    entries = []
    for e in d.pop("entries"):
        e = dict(e)
        del e["frames"]
        for k in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            e[k] = e[k] or 0
        e["process_group"] = list(e["process_group"])
        entries.append(e)
    if entries:
        d["entries"] = entries
    return json.dumps(d, sort_keys=True, separators=(",", ":")).encode()
