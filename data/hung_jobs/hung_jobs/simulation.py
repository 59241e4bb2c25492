"""Runs the programs of all ranks until nothing moves."""

import math
from collections import deque

from hung_jobs.events import Event, depend, release
from hung_jobs.program import BATCH, COLL, COMPUTE, CPU, DTYPE_BYTES, MARK, P2P, STUCK, SYNC, WAIT


class Record:
    """One entry of the flight recorder: instruction, time, events and counters of one call.

    `ready` is the event at which the device starts the call, `end` the one at which it completes.
    A message in a batch (`part`) is no work: its batch has the events.
    """

    __slots__ = ("i", "t", "ready", "end", "cseq", "pseq", "opid", "gid", "work", "part")

    def __init__(self, i, t, ready, end, cseq, pseq, opid, gid, work=True, part=None):
        self.i, self.t, self.ready, self.end = i, t, ready, end
        self.cseq, self.pseq, self.opid, self.gid = cseq, pseq, opid, gid
        self.work, self.part = work, part


class Slot:
    """The records of one collective of a group, by rank, and the event of its completion."""

    __slots__ = ("members", "done")

    def __init__(self):
        self.members, self.done = {}, None


class Simulation:
    """Runs programs, one list of instructions per rank.

    Afterwards `records[RANK]` are its calls, `stopped[RANK]` says where its CPU stopped, and
    `marks[FAULT]` is where a faulty rank came to its fault: (rank, records before it, time).
    """

    def __init__(self, job, programs, rng, options):
        self.job, self.programs, self.rng, self.o = job, programs, rng, options
        self.world = len(programs)
        self.records = [[] for _ in range(self.world)]
        self.stopped = [None] * self.world  # "stuck", "sync", "queue" (it is full), "end"
        self.marks = {}
        self.eager = options["eager"]
        self.slow = options.get("slow", {})
        self.jitter = [rng.uniform(0.95, 1.05) for _ in range(self.world)]
        for g in job.all_groups:
            g.slots, g.sends, g.recvs = [], {}, {}

    def run(self):
        """Runs all CPUs until none can continue."""
        self.ready_cpus = []
        self.state = [self.new_rank(r) for r in range(self.world)]
        for r in range(self.world):
            self.advance(r)
        while self.ready_cpus:
            self.advance(self.ready_cpus.pop())
        return self

    def new_rank(self, r):
        """The state of a rank at its start.

        `pc`: the next instruction; `t`: the time of the CPU; `tail`: the last event of the compute
        stream; `last`: that of each communicator's stream; `wait`: the event the CPU waits for;
        `tails`: the calls in the launch queue; the others are torch's counters.
        """
        done = Event(0)
        done.t = 0.0
        return {"pc": 0, "t": self.rng.uniform(0, 0.01), "tail": done, "last": {}, "wait": None,
                "tails": deque(), "count": {}, "cseq": {}, "pseq": {}, "opid": {}}

    def advance(self, r):
        """Runs the CPU of rank r until it blocks."""
        st, program, records = self.state[r], self.programs[r], self.records[r]
        ready_cpus, gloo, rng = self.ready_cpus, self.o["gloo"], self.rng
        t, tail, pc = st["t"], st["tail"], st["pc"]
        last, tails, limit = st["last"], st["tails"], self.o["queue"]
        overhead = 15e-6 * self.jitter[r]
        scale = self.jitter[r] * self.slow.get(r, 1.0)
        wait = st["wait"]
        if wait is not None:
            if wait.t > t:
                t = wait.t
            st["wait"] = None
        self.stopped[r] = None
        n = len(program)
        while pc < n:
            i = program[pc]
            kind = i.kind
            if kind <= BATCH:
                if len(tails) >= limit:
                    oldest = tails[0]
                    if oldest.t is None:
                        oldest.cpu, st["wait"], self.stopped[r] = r, oldest, "queue"
                        break
                    if oldest.t > t:
                        t = oldest.t
                    tails.popleft()
                t += overhead
                g = i.g
                stream = g
                if kind == P2P and g is not None:
                    me = g.index[r]
                    stream = (g, min(me, i.peer), max(me, i.peer))
                ready = Event(1, t + 1e-5)
                depend(ready, tail)
                previous = last.get(stream)
                if previous is not None:
                    depend(ready, previous)
                end = Event(1)
                release(ready, ready_cpus)
                last[stream] = end
                cseq = st["cseq"].get(g, 0)
                pseq = st["pseq"].get(g, 0)
                opid = st["opid"].get(g, 0)
                if kind == COLL:
                    cseq += 1
                    opid += 1
                    st["cseq"][g] = cseq
                    rec = Record(i, t, ready, end, cseq, pseq, opid, g)
                    records.append(rec)
                    self.join(g, cseq - 1, r, rec)
                elif kind == P2P:
                    pseq += 1
                    opid += 1
                    st["pseq"][g] = pseq
                    rec = Record(i, t, ready, end, cseq, pseq, opid, g)
                    if not gloo:
                        records.append(rec)
                    self.message(g, stream, r, i.op, i.peer, (tuple(i.ins[0]), i.dt), rec)
                    release(end, ready_cpus)
                else:
                    pseq += 1
                    st["pseq"][g] = pseq
                    work = Record(i, t, ready, end, cseq, pseq, 0, g)
                    for part in i.parts:
                        opid += 1
                        t += 2e-6
                        rec = Record(i, t, None, None, cseq, pseq, opid, g, False, part)
                        records.append(rec)
                        self.message(g, g, r, part[0], part[1], (tuple(part[2]), part[3]), work)
                    t += 2e-6
                    work.t, work.opid = t, opid
                    records.append(work)
                    release(end, ready_cpus)
                st["opid"][g] = opid
                if gloo:
                    pc += 1
                    if end.t is None:
                        end.cpu, st["wait"], self.stopped[r] = r, end, "sync"
                        break
                    if end.t > t:
                        t = end.t
                    continue
                if i.sync:
                    tail = end
                tails.append(tail)
            elif kind == COMPUTE:
                dur = i.dur * scale * rng.uniform(0.8, 1.3)
                if gloo:
                    t += dur
                elif tail.t is not None:
                    e = Event(0)
                    e.t = (tail.t if tail.t > t else t) + dur
                    tail = e
                else:
                    e = Event(1, t, dur)
                    tail.waiters.append(e)
                    tail = e
            elif kind == SYNC:
                if tail.t is None:
                    pc += 1
                    tail.cpu, st["wait"], self.stopped[r] = r, tail, "sync"
                    break
                if tail.t > t:
                    t = tail.t
            elif kind == CPU:
                t += i.dur * scale * rng.uniform(0.5, 2.0)
            elif kind == WAIT:
                previous = last.get(i.g)
                if previous is not None and not gloo:
                    e = Event(1)
                    depend(e, tail)
                    depend(e, previous)
                    release(e, ready_cpus)
                    tail = e
            elif kind == MARK:
                self.marks[i.fault] = (r, len(records), t)
            elif kind == STUCK:
                self.marks[i.fault] = (r, len(records), t)
                self.stopped[r] = "stuck"
                break
            pc += 1
        else:
            self.stopped[r] = "end"
        st["pc"], st["t"], st["tail"] = pc, t, tail

    def join(self, g, k, r, rec):
        """Adds rank r to the k-th collective of the group; with the last member it can complete."""
        slots = g.slots
        while len(slots) <= k:
            slots.append(Slot())
        slot = slots[k]
        members = slot.members
        members[r] = rec
        if len(members) < len(g.ranks):
            return
        first = rec.i
        sig = first.sig
        matched = True
        device = None
        for m in members.values():
            i = m.i
            if i.device is not None:
                device = i.device
            if i is not first:
                s = i.sig
                if s != sig and not (s[0] == "all_to_all" == sig[0] and s[3] == sig[3]):
                    matched = False
                    break
        if not matched:
            return
        size = max(math.prod(first.ins[0]) if first.ins else 1, 1)
        done = Event(1, 0.0, 2e-5 + min(0.03, size * 2e-11))
        for m in members.values():
            depend(done, m.ready)
        dead = ()
        if device is not None:
            if device[0] == "all":
                slot.done = done
                return
            dead = device[1]
        for r2, m in members.items():
            if r2 in dead:
                continue
            depend(m.end, done)
            release(m.end, self.ready_cpus)
        slot.done = done
        release(done, self.ready_cpus)

    def message(self, g, stream, r, op, peer, sig, rec):
        """Adds one send or receive; `rec.end` depends on its completion."""
        me = g.index[r]
        comm = 0 if stream is g else 1
        send = op == "send"
        key = (comm, me, peer) if send else (comm, peer, me)
        mine, theirs = (g.sends, g.recvs) if send else (g.recvs, g.sends)
        queue = mine.setdefault(key, [])
        k = len(queue)
        queue.append((rec, sig))
        others = theirs.get(key, ())
        other = others[k][0] if len(others) > k and others[k][1] == sig else None
        end = rec.end
        end.pending += 1  # released when this message completes
        eager = math.prod(sig[0]) * DTYPE_BYTES[sig[1]] <= self.eager
        if eager and send:
            depend(end, rec.ready)
            end.pending -= 1
        if other is not None:
            done = Event(1, 0.0, 3e-5)
            depend(done, rec.ready)
            depend(done, other.ready)
            if not (eager and send):
                done.waiters.append(end)
            if not (eager and not send):
                done.waiters.append(other.end)
            release(done, self.ready_cpus)
