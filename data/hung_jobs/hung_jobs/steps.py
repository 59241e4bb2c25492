"""The fault-free program of every rank: the calls of a training step."""

import random

from hung_jobs.meshes import Mesh
from hung_jobs.program import BATCH, COLL, COMPUTE, CPU, P2P, SYNC, WAIT, Instr


class Job(Mesh):
    """A mesh and the fault-free programs of its ranks.

    Parameters called `out` are the program to append to. The settings drawn by the constructor
    are the same for all ranks: the sizes of the network, the schedule, how often it logs.
    """

    def __init__(self, rng, options):
        super().__init__(rng, options)
        self.cache = {}
        self.layers = rng.choice([1, 1, 2, 2, 3, 4])
        if "pp" in self.dims:
            few = rng.choice([2, 3, 4, 4, 6, 8])
            self.microbatches = max(few, min(self.dims["pp"], 8))
        else:
            self.microbatches = rng.choice([1, 1, 1, 2, 4])
        self.hidden = rng.choice([512, 1024, 2048, 4096, 5120, 8192])
        self.seq = rng.choice([512, 1024, 2048, 4096])
        self.mb = rng.choice([1, 2, 4])
        self.act = rng.choice(["BFloat16", "BFloat16", "Half", "Float"])
        self.grad = rng.choice(["Float", "BFloat16", "Float"])
        self.sequence_parallel = rng.random() < 0.5
        self.schedule = rng.choice(["1f1b", "1f1b", "gpipe", "gpipe_single"])
        self.data_bcast = rng.random() < 0.5
        self.cp_style = rng.choice(["ring", "ag"])
        self.buckets = rng.choice([1, 2, 3, 5])
        self.log_every = rng.choice([1, 1, 1, 2, 4])
        self.ckpt_every = rng.choice([0, 3, 5])
        self.uneven_a2a = rng.random() < 0.5
        self.item_norm = rng.random() < 0.4
        self.compute = rng.choice([0.002, 0.01, 0.05, 0.2])

    # Instructions are shared between ranks and steps: equal arguments give the same object.

    def coll(self, g, op, ins, outs, dt, pt, sync=True):
        """A collective."""
        key = (g, op, ins, outs, dt, pt, sync)
        i = self.cache.get(key)
        if i is None:
            ins = [list(ins)] if ins is not None else []
            outs = [list(outs)] if outs is not None else []
            i = self.cache[key] = Instr(COLL, g, op, ins, outs, dt, pt, sync)
        return i

    def p2p(self, g, op, peer, size, dt, pt, sync=True):
        """A send or receive outside a batch."""
        key = ("p", g, op, peer, size, dt, pt, sync)
        i = self.cache.get(key)
        if i is None:
            i = self.cache[key] = Instr(P2P, g, op, [list(size)], [list(size)], dt, pt, sync, peer)
        return i

    def batch(self, g, parts, pt):
        """A batch of messages. `parts`: tuple of (op, group rank of the peer, size, dtype)."""
        key = ("b", g, parts, pt)
        i = self.cache.get(key)
        if i is None:
            i = self.cache[key] = Instr(BATCH, g, "coalesced", [], [], None, pt, True, None, parts)
        return i

    def simple(self, kind, dur=0.0, g=None):
        """An instruction that is no call."""
        key = (kind, dur, g)
        i = self.cache.get(key)
        if i is None:
            i = self.cache[key] = Instr(kind, g, dur=dur)
        return i

    def barrier(self, pt):
        """A barrier of the world: of its own kind in gloo, an all_reduce in NCCL."""
        if self.o["gloo"]:
            return self.coll(self.default, "barrier", None, None, None, pt)
        return self.coll(self.default, "all_reduce_barrier", (1,), (1,), "Float", pt)

    def all_reduce(self, g, size, dt, pt, sync=True):
        """An all_reduce."""
        return self.coll(g, "all_reduce", size, size, dt, pt, sync)

    def gathered(self, g, shard, dt, pt, sync=True):
        """An all_gather of one shard from each rank."""
        n = len(g)
        if self.o["gloo"]:  # gloo records one buffer with the group size as the first dimension
            return self.coll(g, "all_gather", shard, (n,) + shard, dt, pt, sync)
        return self.coll(g, "_all_gather_base", shard, (shard[0] * n,) + shard[1:], dt, pt, sync)

    def scattered(self, g, shard, dt, pt, sync=True):
        """A reduce_scatter that leaves one shard on each rank."""
        if self.o["gloo"]:
            return self.coll(g, "all_reduce", (shard[0] * len(g),) + shard[1:],
                             (shard[0] * len(g),) + shard[1:], dt, pt, sync)
        return self.coll(g, "_reduce_scatter_base", (shard[0] * len(g),) + shard[1:], shard, dt, pt,
                         sync)

    def tp_pair(self, out, g, pt, backward):
        """One tensor-parallel block (sequence parallel: gather before and scatter after it)."""
        work = self.simple(COMPUTE, self.compute * (2 if backward else 1))
        tokens = self.seq * self.mb // max(1, self.dims.get("cp", 1))
        if g is None:
            out.append(work)
        elif self.sequence_parallel:
            name = "b." + pt if backward else pt + ".ag"
            shard = (max(1, tokens // len(g)), self.hidden)
            out.append(self.gathered(g, shard, self.act, name))
            out.append(work)
            out.append(self.scattered(g, shard, self.act, "b." + pt if backward else pt + ".rs"))
        else:
            out.append(work)
            name = "b." + pt if backward else pt + ".ar"
            out.append(self.all_reduce(g, (tokens, self.hidden), self.act, name))

    def a2a(self, out, g, r, layer, pt, mb):
        """The all_to_all that brings tokens to experts or back."""
        rows = self.seq * self.mb
        if not self.uneven_a2a:
            n = (rows, self.hidden)
            out.append(self.coll(g, "all_to_all", n, n, self.act, pt))
            return
        # Token counts by a fixed pseudo-random routing table: counts[i][j] rows from i to j.
        n = len(g)
        table = self.cache.get(("route", g, layer, mb))
        if table is None:
            rng = random.Random(f"{g.ranks}{layer}{mb}{self.seq}")
            table = [[rng.randrange(1, 2 * rows // n) for _ in range(n)] for _ in range(n)]
            self.cache[("route", g, layer, mb)] = table
        me = g.index[r]
        sent, got = sum(table[me]), sum(row[me] for row in table)
        if pt in ("ep.combine", "b.ep1"):
            sent, got = got, sent
        out.append(self.coll(g, "all_to_all", (sent, self.hidden), (got, self.hidden), self.act,
                             pt))

    def forward(self, out, r, mb):
        """The forward pass of one microbatch."""
        tp, cp, ep, shard = (self.dim(d, r) for d in ("tp", "cp", "ep", "dp_shard"))
        for layer in range(self.layers):
            if shard is not None:
                n = max(1, 12 * self.hidden * self.hidden // len(shard) // self.dims.get("tp", 1))
                out.append(self.gathered(shard, (n + layer,), self.act, "fsdp.ag"))
            elif self.kind_of_mesh == "fsdp":
                n = max(1, 12 * self.hidden * self.hidden // self.world)
                out.append(self.gathered(self.default, (n + layer,), self.act, "fsdp.ag"))
            if cp is not None:
                kv = (2, self.mb, self.seq // len(cp), self.hidden // 4)
                if self.cp_style == "ring" and not self.o["gloo"]:
                    me, n = cp.index[r], len(cp)
                    for _ in range(min(n - 1, 3)):
                        out.append(self.simple(COMPUTE, self.compute / 2))
                        parts = (("send", (me + 1) % n, kv, self.act),
                                 ("recv", (me - 1) % n, kv, self.act))
                        out.append(self.batch(cp, parts, "cp.ring"))
                else:
                    out.append(self.gathered(cp, kv[1:], self.act, "cp.ag"))
            self.tp_pair(out, tp, "attn", False)
            if ep is not None:
                self.a2a(out, ep, r, layer, "ep.dispatch", mb)
                out.append(self.simple(COMPUTE, self.compute))
                self.a2a(out, ep, r, layer, "ep.combine", mb)
            self.tp_pair(out, tp, "mlp", False)
        if tp is not None and ("pp" not in self.dims or self.coord(r, "pp") == self.dims["pp"] - 1):
            out.append(self.all_reduce(tp, (self.mb, self.seq), "Float", "head"))

    def backward(self, out, r, mb, last):
        """The backward pass of one microbatch; the last one reduces gradients."""
        tp, cp, ep, shard = (self.dim(d, r) for d in ("tp", "cp", "ep", "dp_shard"))
        if self.kind_of_mesh == "fsdp":
            shard = self.default
        for layer in reversed(range(self.layers)):
            if shard is not None:
                n = max(1, 12 * self.hidden * self.hidden // len(shard) // self.dims.get("tp", 1))
                out.append(self.gathered(shard, (n + layer,), self.act, "fsdp.bag"))
            self.tp_pair(out, tp, "mlp", True)
            if ep is not None:
                self.a2a(out, ep, r, layer, "b.ep1", mb)
                self.a2a(out, ep, r, layer, "b.ep2", mb)
            self.tp_pair(out, tp, "attn", True)
            if cp is not None:
                kv = (2, self.mb, self.seq // len(cp), self.hidden // 4)
                out.append(self.scattered(cp, kv[1:], self.act, "b.cp"))
            if shard is not None:
                n = max(1, 12 * self.hidden * self.hidden // len(shard) // self.dims.get("tp", 1))
                out.append(self.scattered(shard, (n + layer,), self.grad, "fsdp.rs", sync=False))
            elif last and ("dp" in self.dims) and layer < self.buckets:
                g = self.dim("dp", r) or self.default
                n = 12 * self.hidden * self.hidden
                out.append(self.all_reduce(g, (n + layer,), self.grad, "grad.dp", sync=False))

    def step(self, r, s, microbatches=None):
        """The instructions of rank r in training step s."""
        out = []
        m = microbatches or self.microbatches
        tp, pp = self.dim("tp", r), self.dim("pp", r)
        out.append(self.simple(CPU, 0.003))
        if tp is not None and self.data_bcast:
            out.append(self.coll(tp, "broadcast", (self.mb, self.seq + 1), (self.mb, self.seq + 1),
                                 "Long", "data.bcast"))
        size = (self.seq // self.dims.get("cp", 1), self.mb, self.hidden)
        if pp is None:
            for b in range(m):
                self.forward(out, r, b)
                self.backward(out, r, b, b == m - 1)
        else:
            self.pipeline(out, r, pp, m, size)
        # Gradients, norm, optimizer.
        dp = self.dim("dp", r)
        if "dp" in self.dims:
            g = dp or self.default
            for b in range(max(0, self.buckets - self.layers)):
                n = self.hidden * 1000
                out.append(self.all_reduce(g, (n + b,), self.grad, "grad.dp", sync=False))
            out.append(self.simple(WAIT, g=g))
        if self.dim("ep", r) is not None:
            out.append(self.all_reduce(self.default, (self.hidden * self.hidden,), self.grad,
                                       "grad.ep"))
        if self.dim("dp_shard", r) is not None or self.kind_of_mesh == "fsdp":
            out.append(self.simple(WAIT, g=self.dim("dp_shard", r) or self.default))
        rep = self.dim("dp_replicate", r)
        if rep is not None:
            n = 12 * self.hidden * self.hidden // self.dims["dp_shard"]
            out.append(self.all_reduce(rep, (n,), self.grad, "grad.rep"))
        emb = self.dim("embd", r)
        if emb is not None:
            out.append(self.all_reduce(emb, (32000, self.hidden), self.grad, "grad.emb"))
        out.append(self.all_reduce(self.default, (1,), "Float", "grad.norm"))
        if self.item_norm:
            out.append(self.simple(SYNC))
        out.append(self.simple(COMPUTE, self.compute))
        if s % self.log_every == 0:
            out.append(self.all_reduce(self.default, (2,), "Float", "log.loss"))
            out.append(self.simple(SYNC))
        if self.ckpt_every and s % self.ckpt_every == self.ckpt_every - 1:
            out.append(self.gathered(self.default, (64,), "Long", "ckpt.gather"))
            out.append(self.simple(SYNC))
            out.append(self.barrier("ckpt.barrier"))
            out.append(self.simple(SYNC))
        return out

    def pipeline(self, out, r, pp, m, size):
        """The microbatches of one pipeline stage; `size` is that of an activation."""
        s, n = pp.index[r], len(pp)
        first, last = s == 0, s == n - 1
        dt = self.act
        if self.schedule == "gpipe_single":
            for b in range(m):
                if not first:
                    out.append(self.p2p(pp, "recv", s - 1, size, dt, "pp.recv_f"))
                self.forward(out, r, b)
                if not last:
                    out.append(self.p2p(pp, "send", s + 1, size, dt, "pp.send_f", sync=False))
            for b in range(m):
                if not last:
                    out.append(self.p2p(pp, "recv", s + 1, size, dt, "pp.recv_b"))
                self.backward(out, r, b, b == m - 1)
                if not first:
                    out.append(self.p2p(pp, "send", s - 1, size, dt, "pp.send_b", sync=False))
            return

        def bt(pt, *parts):
            out.append(self.batch(pp, tuple((op, peer, size, dt) for op, peer in parts), pt))

        if self.schedule == "gpipe":
            for b in range(m):
                if not first:
                    bt("pp.recv_f", ("recv", s - 1))
                self.forward(out, r, b)
                if not last:
                    bt("pp.send_f", ("send", s + 1))
            for b in range(m):
                if not last:
                    bt("pp.recv_b", ("recv", s + 1))
                self.backward(out, r, b, b == m - 1)
                if not first:
                    bt("pp.send_b", ("send", s - 1))
            return
        warm = min(n - s - 1, m)
        for b in range(warm):
            if not first:
                bt("pp.recv_f", ("recv", s - 1))
            self.forward(out, r, b)
            if not last:
                bt("pp.send_f", ("send", s + 1))
        steady = m - warm
        if steady > 0 and not first:
            bt("pp.recv_f", ("recv", s - 1))
        for b in range(steady):
            self.forward(out, r, warm + b)
            if not last:
                bt("pp.sfrb", ("send", s + 1), ("recv", s + 1))
            self.backward(out, r, b, b == m - 1)
            if b == steady - 1:
                if not first:
                    bt("pp.send_b", ("send", s - 1))
            elif not first:
                bt("pp.sbrf", ("send", s - 1), ("recv", s - 1))
        for b in range(warm):
            if not last:
                bt("pp.recv_b", ("recv", s + 1))
            self.backward(out, r, steady + b, steady + b == m - 1)
            if not first:
                bt("pp.send_b", ("send", s - 1))

    def setup(self, r):
        """What rank r does before the first step."""
        out = [self.barrier("init.barrier")]
        if "dp" in self.dims or "ep" in self.dims:
            g = self.dim("dp", r) or self.default
            for k in range(2):
                out.append(self.coll(g, "broadcast", (self.hidden * 100 + k,),
                                     (self.hidden * 100 + k,), self.act, "init.bcast"))
        out.append(self.simple(SYNC))
        return out

    def epilogue(self, r):
        """What rank r does after the last step."""
        return [self.coll(self.default, "broadcast", (16,), (16,), "Long", "eval.bcast"),
                self.all_reduce(self.default, (3,), "Double", "eval.reduce"), self.simple(SYNC)]
