"""Meshes of ranks and their process groups."""

import hashlib
import math

from hung_jobs.program import Group

MESHES = {  # outermost dimension first; default_pg is the world
    "ddp": ("dp",),
    "fsdp": ("dp_shard",),
    "hsdp": ("dp_replicate", "dp_shard"),
    "dp_tp": ("dp", "tp"),
    "fsdp_tp": ("dp_shard", "tp"),
    "dp_pp": ("pp", "dp"),
    "pp_tp": ("pp", "tp"),
    "dp_pp_tp": ("pp", "dp", "tp"),
    "dp_ep": ("dp", "ep"),
    "dp_cp": ("dp", "cp"),
    "dp_cp_tp": ("dp", "cp", "tp"),
    "pp_ep": ("pp", "ep"),
    "hsdp_tp": ("dp_replicate", "dp_shard", "tp"),
    "pp": ("pp",),
}
MEGATRON = {"dp": "DATA_PARALLEL_GROUP", "tp": "TENSOR_MODEL_PARALLEL_GROUP",
            "pp": "PIPELINE_MODEL_PARALLEL_GROUP", "cp": "CONTEXT_PARALLEL_GROUP",
            "ep": "EXPERT_MODEL_PARALLEL_GROUP"}


class Mesh:
    """The ranks of a job and their groups: the world, and the lines of ranks along each dimension.

    `by_dim[DIMENSION][RANK]` is the group of a rank, `groups_of[RANK]` all its groups in the order
    of their creation. `style` is how groups are described, `naming` how they are named.
    """

    def __init__(self, rng, options):
        self.rng = rng
        self.o = options
        self.kind_of_mesh = options["mesh"]
        self.dims = options["dims"]  # {name: size}, outermost first
        self.world = math.prod(self.dims.values())
        self.names = list(self.dims)
        self.counter = 0
        self.style = rng.choice(["mesh", "mesh", "megatron", "undefined"])
        self.naming = "int" if options["gloo"] else rng.choice(["int", "int", "hash", "shared"])
        self.groups_of = [[] for _ in range(self.world)]
        self.all_groups = []
        self.default = self.new_group("default_pg", range(self.world), "0")
        self.by_dim = {}
        self.strides, stride = {}, 1
        for n in reversed(self.names):
            self.strides[n] = stride
            stride *= self.dims[n]
        for n in self.names:
            if self.dims[n] > 1 and self.kind_of_mesh != "ddp":
                self.add_groups_along(n)
        if self.dims.get("pp", 0) > 2 and options["embedding"]:
            self.add_embedding_groups()

    def add_groups_along(self, n):
        """Creates the groups of dimension n."""
        stride = self.strides[n]
        shared = None
        table = self.by_dim[n] = {}
        for r in range(self.world):
            if r in table:
                continue
            k = self.coord(r, n)
            ranks = [r + (j - k) * stride for j in range(self.dims[n])]
            if self.naming == "shared" and shared is not None:
                g = self.new_group(self.desc(n), ranks, shared)
            else:
                g = self.new_group(self.desc(n), ranks)
                shared = g.name
            for m in ranks:
                table[m] = g

    def add_embedding_groups(self):
        """Creates the groups of the first and the last stage of each pipeline."""
        table = self.by_dim["embd"] = {}
        desc = "EMBEDDING_GROUP" if self.style == "megatron" else "mesh_embd"
        for r in range(self.world):
            if self.coord(r, "pp") == 0:
                last = r + (self.dims["pp"] - 1) * self.strides["pp"]
                table[r] = table[last] = self.new_group(desc, [r, last])

    def desc(self, dim):
        """How torch describes the groups of a dimension."""
        if self.style == "mesh":
            return "mesh_" + dim
        if self.style == "megatron":
            return MEGATRON.get(dim, dim.upper() + "_GROUP")
        return "undefined"

    def new_group(self, desc, ranks, name=None):
        """Creates a group of these ranks, with a new name unless one is given."""
        ranks = tuple(ranks)
        if name is None:
            self.counter += 1
            name = str(self.counter)
            if self.naming == "hash":
                name = hashlib.sha1(repr((ranks, self.counter)).encode()).hexdigest()
        g = Group(name, desc, ranks)
        self.all_groups.append(g)
        for r in ranks:
            self.groups_of[r].append(g)
        return g

    def coord(self, r, dim):
        """The position of rank r along a dimension."""
        return (r // self.strides[dim]) % self.dims[dim]

    def dim(self, name, r):
        """The group of rank r along a dimension, or None."""
        return self.by_dim.get(name, {}).get(r)
