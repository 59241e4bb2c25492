"""Draws the properties of a job: its mesh, and what its dumps are like."""

from hung_jobs.faults import NEEDS
from hung_jobs.faults.fault import Impossible
from hung_jobs.meshes import MESHES

WORLDS = (4, 4, 6, 8, 8, 8, 8, 12, 16, 16, 16, 24, 32, 32, 64)


def draw_mesh(rng, kind, worlds, gloo):
    """A mesh on which the kind of fault is possible: (name, {dimension: size})."""
    need = NEEDS.get(kind)
    sub = kind in ("stuck_before_sub", "wrong_group", "swapped_across_groups", "host_sync_cycle")
    for _ in range(1000):
        mesh = rng.choice(sorted(MESHES))
        names = MESHES[mesh]
        if gloo and "pp" in names:
            continue
        if need and need not in names and not (kind == "microbatches" and len(names) > 1):
            continue
        if sub and mesh in ("ddp", "fsdp", "pp"):
            continue
        world = rng.choice(worlds)
        dims, left = {}, world
        for n in names[:-1]:
            options = [d for d in range(2, left) if left % d == 0 and d <= 16]
            if not options:
                break
            dims[n] = rng.choice(options)
            left //= dims[n]
        else:
            dims[names[-1]] = left
            if left < 2 or dims.get("tp", 0) > 16 or dims.get("pp", 0) > 16:
                continue
            if kind == "wrong_peer" and dims["pp"] < 3:
                continue
            return mesh, dims
    raise Impossible


def draw_options(rng, kind, args, gloo):
    """The options of a job: a dict that the mesh, the simulation and the dumps read.

    `queue`: calls the CPU may run ahead; `late`: the history before the first entries is evicted;
    `skew`: standard deviation of the clocks in seconds; `timeout`: of the watchdog, in ms.
    """
    worlds = [w for w in WORLDS if w <= args.world_max] or [4]
    if args.world_max >= 256 and rng.random() < 0.01:
        worlds = [256]
    mesh, dims = draw_mesh(rng, kind, worlds, gloo)
    capacity = args.last or rng.choice([2000, 2000, 2000, 2000, 100, 200])
    if gloo or rng.random() < 0.5:
        version = "2.10"
    else:
        version = rng.choice(["2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9"])
    return {"mesh": mesh, "dims": dims, "gloo": gloo, "embedding": rng.random() < 0.5,
            "eager": rng.choice([0, 0, 1 << 14, 1 << 20]),
            "queue": min(rng.choice([16, 32, 64, 256]), max(4, capacity // 6)),
            "timing": getattr(args, "timing", False),
            "capacity": capacity, "late": rng.random() < 0.6, "id_offset": rng.random() < 0.5,
            "skew": rng.choice([0.0, 1e-4, 2e-3, 0.05]),
            "timeout": 1800000 if gloo else rng.choice([600000, 600000, 300000, 1800000]),
            "version": version, "mixed_versions": not gloo and rng.random() < 0.04,
            "comm_state": not gloo and rng.random() < 0.1, "no_dump": set(), "slow": {}}
