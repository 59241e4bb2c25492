"""Grouped GEMMs, one weight per group of rows, compared with numpy in double precision."""

from __future__ import annotations

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

from workers.jax_near import Near, compare, compare_shards, summed
from workers.jax_products import all_choices, parts

GROUPS = 4


@dataclasses.dataclass
class Case:
    comm_type: str
    method: str
    atomic: bool
    dtype: str
    place: str
    bias: bool
    rhs_transposed: bool
    chunks: int
    tapered: bool
    uneven: bool
    sum_gradients: bool | None
    seed: int

    def __str__(self):
        said = [f"{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self)]
        return "grouped " + " ".join(said)

    @property
    def is_summed(self):
        return self.comm_type in ("reduce_scatter", "all_reduce")

    @property
    def options(self):
        return dict(comm_type=self.comm_type, comm_overlap_method=self.method,
                    atomic_gemm=self.atomic, rhs_transposed=self.rhs_transposed,
                    chunks=self.chunks, tapered=self.tapered, sum_gradients=self.sum_gradients)


def draw_sizes(draw, rows):
    """That add up to the rows, with zeros among them."""
    empty = draw.sample(range(GROUPS), draw.randint(0, GROUPS - 1))
    used = [g for g in range(GROUPS) if g not in empty]
    sizes = [0] * GROUPS
    for _ in range(rows):
        sizes[draw.choice(used)] += 1
    return sizes


def multiply(x, w, number):
    """Every row by the matrix of its group."""
    value = np.zeros((x.value.shape[0], w.value.shape[2]))
    made = Near(value)
    for g in range(GROUPS):
        one = x[number == g] @ w[g]
        made.value[number == g], made.error[number == g] = one.value, one.error
    return made


def stacked(made):
    return Near(np.stack([m.value for m in made]), np.stack([m.error for m in made]))


class Question:
    """Whole matrices, the group of each row, and the parts of ranks."""

    def __init__(self, case, ranks):
        self.case, self.ranks = case, ranks
        self.rng, self.draw = np.random.default_rng(case.seed), random.Random(case.seed)
        rows, depth, columns = 8 * ranks, 5 * ranks, 3 * ranks
        if case.uneven:
            rows, depth, columns = rows + ranks - 1, depth + 1, columns + 1
        self.sizes = rows, depth, columns
        self.of_rows, self.of_depth = parts(rows, ranks), parts(depth, ranks)
        self.of_columns = parts(columns, ranks)
        self.w, self.b = self.numbers(GROUPS, depth, columns), self.numbers(GROUPS, columns)
        self.new_call()

    def numbers(self, *shape):
        return self.rng.standard_normal(shape).astype(jnp.dtype(self.case.dtype))

    def new_call(self):
        """Other rows, other sizes."""
        rows, depth, columns = self.sizes
        self.x = self.numbers(rows, depth)
        self.c = [self.numbers(rows, columns)] * self.ranks
        if self.case.sum_gradients:
            self.c = [self.numbers(rows, columns) for _ in range(self.ranks)]
        if self.case.is_summed:
            self.group_sizes = [draw_sizes(self.draw, rows)] * self.ranks
            self.number = np.repeat(np.arange(GROUPS), self.group_sizes[0])
        else:  # of the rows of each rank
            self.group_sizes = [draw_sizes(self.draw, r.stop - r.start) for r in self.of_rows]
            self.number = np.concatenate([np.repeat(np.arange(GROUPS), one)
                                          for one in self.group_sizes])

    def result(self):
        x, w, dtype = Near(self.x), Near(self.w), self.case.dtype
        if self.case.is_summed:
            made = summed([multiply(x[:, d], w[:, d], self.number) for d in self.of_depth], dtype)
        else:
            made = multiply(x, w, self.number)
        if self.case.bias:
            made = made + Near(self.b)[self.number]
        return made.rounded(dtype)

    def over_groups(self, rows, act):
        return stacked([act(rows & (self.number == g)) for g in range(GROUPS)])

    def gradients(self):
        """Of what each rank has."""
        case, dtype = self.case, self.case.dtype
        x, w = Near(self.x), Near(self.w)
        turned = Near(w.value.transpose(0, 2, 1))
        dz = [Near(c) for c in self.c]
        every = np.ones(self.sizes[0], bool)
        if case.is_summed:
            if case.sum_gradients:
                dz = [summed(dz, dtype)] * self.ranks
            if case.place == "unchecked" and case.comm_type == "all_reduce":
                dz = [one.rounded(dtype, self.ranks) for one in dz]
            dx = [multiply(dz[k], turned[:, :, d], self.number)
                  for k, d in enumerate(self.of_depth)]
            dw = [self.over_groups(every, lambda m, k=k, d=d: x[m][:, d].T @ dz[k][m])
                  for k, d in enumerate(self.of_depth)]
            dbias = [None] * self.ranks
        elif case.comm_type == "all_gather":
            whole = summed([multiply(dz[k][:, n], turned[:, n], self.number)
                            for k, n in enumerate(self.of_columns)], dtype)
            dx = [whole[r] for r in self.of_rows]
            dw = [self.over_groups(every, lambda m, k=k, n=n: x[m].T @ dz[k][m][:, n])
                  for k, n in enumerate(self.of_columns)]
            dbias = [self.over_groups(every, lambda m, k=k, n=n: dz[k][m][:, n].column_sums())
                     for k, n in enumerate(self.of_columns)]
        else:
            own = [np.isin(np.arange(self.sizes[0]), np.arange(r.start, r.stop))
                   for r in self.of_rows]
            whole = multiply(dz[0], turned, self.number)
            dx = [whole[r] for r in self.of_rows]
            dw = [self.over_groups(m, lambda m: x[m].T @ dz[0][m]) for m in own]
            dbias = [self.over_groups(m, lambda m: dz[0][m].column_sums()) for m in own]
        return tuple([None if one is None else one.rounded(dtype) for one in made]
                     for made in (dx, dw, dbias))

    def lay_w(self, w):
        return w.transpose(0, 2, 1) if self.case.rhs_transposed else w


def joined(parts, axis):
    return Near(np.concatenate([p.value for p in parts], axis),
                np.concatenate([p.error for p in parts], axis))


def laid(one, lay):
    return Near(lay(one.value), lay(one.error))


def step_of(layer):
    """Compiled once for all sizes."""
    @jax.jit
    def step(arrays, sizes, cotangent):
        result, back = jax.vjp(lambda *arrays: layer(sizes, *arrays), *arrays)
        return result, back(cotangent)
    return step


def in_shard_map(setting, case):
    question = Question(case, setting.ranks)
    gathers, kind = case.comm_type == "all_gather", case.comm_type
    x_spec = P(None, "tp") if case.is_summed else P("tp", None)
    w_axes = (None, "tp" if case.is_summed else None, "tp" if gathers else None)
    w_spec = P(w_axes[0], w_axes[2], w_axes[1]) if case.rhs_transposed else P(*w_axes)
    sizes_spec = P() if case.is_summed else P("tp")
    y_spec = {"all_gather": P(None, "tp"), "all_reduce": P(None, None)}.get(kind, P("tp", None))
    in_specs = [sizes_spec, x_spec, w_spec]
    if case.bias:
        in_specs.append(P(None, "tp" if gathers else None))

    def layer(sizes, x, w, bias=None):
        return sj.grouped_gemm(x, w, sizes, bias=bias, group=setting.group, **case.options)

    step = step_of(jax.shard_map(layer, mesh=setting.mesh, in_specs=tuple(in_specs),
                                 out_specs=y_spec, check_vma=case.place == "checked"))
    for _ in range(3):
        question.new_call()
        arrays = [setting.put(question.x, x_spec), setting.put(question.lay_w(question.w), w_spec)]
        if case.bias:
            arrays.append(setting.put(question.b, in_specs[-1]))
        sizes = question.group_sizes[0] if case.is_summed else np.concatenate(question.group_sizes)
        result, gradients = step(arrays, setting.put(np.array(sizes, np.int32), sizes_spec),
                                 setting.put(question.c[0], y_spec))
        told = f" of sizes {question.group_sizes}"
        compare_shards("result" + told, result, question.result())
        dx, dw, dbias = question.gradients()
        if kind == "none":
            dw, dbias = [summed(dw, case.dtype)], [summed(dbias, case.dtype)]
        compare_shards("gradient of lhs" + told, gradients[0], joined(dx, int(case.is_summed)))
        compare_shards("gradient of rhs" + told, gradients[1],
                       laid(joined(dw, 1 if case.is_summed else 2), question.lay_w))
        if case.bias:
            compare_shards("gradient of bias" + told, gradients[2], joined(dbias, 1))
    assert step._cache_size() == 1, "sizes are numbers of a call, and compiled it was again"


def local(setting, case):
    question = Question(case, setting.ranks)
    me = setting.group.rank
    rows, depth, columns = question.sizes
    options = case.options
    if case.comm_type == "all_gather":
        options.update(rows=rows, global_size=columns)
    elif case.is_summed:
        options.update(global_size=depth)
    of_w = [(slice(None), d) if case.is_summed else
            (slice(None), slice(None), n if case.comm_type == "all_gather" else slice(None))
            for d, n in zip(question.of_depth, question.of_columns)][me]
    of_y = {"all_gather": (slice(None), question.of_columns[me]),
            "all_reduce": (slice(None),)}.get(case.comm_type, (question.of_rows[me],))

    def layer(sizes, x, w, bias=None):
        return sj.grouped_gemm(x, w, sizes, bias=bias, group=setting.group, **options)

    step = step_of(layer)
    for _ in range(3):
        question.new_call()
        x = question.x[:, question.of_depth[me]] if case.is_summed \
            else question.x[question.of_rows[me]]
        arrays = [jnp.asarray(x), jnp.asarray(question.lay_w(question.w[of_w]))]
        if case.bias:
            arrays.append(jnp.asarray(question.b[:, of_w[-1]]))
        result, gradients = step(arrays, jnp.array(question.group_sizes[me], jnp.int32),
                                 jnp.asarray(question.c[me][of_y]))
        told = f" of sizes {question.group_sizes}"
        compare("result" + told, result, question.result()[of_y])
        dx, dw, dbias = question.gradients()
        compare("gradient of lhs" + told, gradients[0], dx[me])
        compare("gradient of rhs" + told, gradients[1], laid(dw[me], question.lay_w))
        if case.bias:
            compare("gradient of bias" + told, gradients[2], dbias[me])
    assert step._cache_size() == 1, "sizes are numbers of a call, and compiled it was again"


def cases(setting):
    draw = random.Random(setting.seed)
    places = setting.arguments["places"]
    seed = 1000 * setting.seed
    for number, (comm_type, method, atomic) in enumerate(all_choices()):
        if method == "bulk":
            continue
        for k, dtype in enumerate(("float32", "bfloat16")):
            place = places[(number + k) % len(places)]
            seed += 1
            is_local, is_summed = place == "local", comm_type in ("reduce_scatter", "all_reduce")
            case = Case(comm_type, method, atomic, dtype, place, seed=seed,
                        bias=not is_summed and draw.random() < 0.7,
                        rhs_transposed=draw.random() < 0.5, chunks=draw.choice((1, 3)),
                        tapered=draw.random() < 0.4, uneven=is_local and draw.random() < 0.7,
                        sum_gradients=draw.random() < 0.5
                        if is_local and comm_type == "all_reduce" else None)
            yield str(case), functools.partial(local if is_local else in_shard_map, setting, case)
