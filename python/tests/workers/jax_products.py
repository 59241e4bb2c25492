"""All GEMMs with their communication, compared with numpy in double precision."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

from workers.jax_near import Near, compare, compare_shards, gelu, gelu_grad, summed


def all_choices():
    """The combinations that the C++ supports."""
    made = subprocess.run([sys.executable, "-m", "shiplap", "overlap", "--list", "--json"],
                          capture_output=True, timeout=60, check=True)
    return [(one["type"], one["method"], one["atomic"])
            for one in json.loads(made.stdout)["choices"]]


@dataclasses.dataclass
class Case:
    comm_type: str
    method: str
    atomic: bool
    dtype: str
    place: str  # checked, unchecked: by shard_map with check_vma or without; local
    gelu: bool = False
    bias: bool = True
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    deep: bool = False  # lhs of three dimensions
    chunks: int = 1
    tapered: bool = False
    uneven: bool = False
    sum_gradients: bool | None = None
    seed: int = 0

    def __str__(self):
        said = [self.comm_type, self.method, self.dtype, self.place]
        said += [field.name for field in dataclasses.fields(self)
                 if getattr(self, field.name) is True]
        return " ".join([*said, f"chunks={self.chunks}", f"seed={self.seed}"])

    @property
    def is_summed(self):
        return self.comm_type in ("reduce_scatter", "all_reduce") and self.method != "bulk"

    @property
    def options(self):
        return dict(comm_type=self.comm_type, comm_overlap_method=self.method,
                    atomic_gemm=self.atomic, activation="gelu" if self.gelu else None,
                    lhs_transposed=self.lhs_transposed, rhs_transposed=self.rhs_transposed,
                    chunks=self.chunks, tapered=self.tapered, sum_gradients=self.sum_gradients)


def parts(count, ranks):
    """Even shards: remainders go to the lowest ranks."""
    ends = np.cumsum([0] + [count // ranks + (r < count % ranks) for r in range(ranks)])
    return [slice(int(a), int(b)) for a, b in zip(ends, ends[1:])]


class Question:
    """Random global matrices, and their shards for each rank."""

    def __init__(self, case, ranks):
        self.case, self.ranks = case, ranks
        rng = np.random.default_rng(case.seed)
        draw = random.Random(case.seed)
        rows, depth, columns = (k * ranks * draw.choice((1, 2)) for k in (6, 5, 3))
        if case.uneven:
            rows, depth, columns = rows + 1, depth - 1, columns + ranks - 1
        self.sizes = rows, depth, columns

        def numbers(*shape):
            return rng.standard_normal(shape).astype(jnp.dtype(case.dtype))

        self.x, self.w, self.b = numbers(rows, depth), numbers(depth, columns), numbers(columns)
        self.c = [numbers(rows, columns)] * ranks  # of the result, on every rank
        if case.sum_gradients:
            self.c = [numbers(rows, columns) for _ in range(ranks)]
        self.t = [numbers(2 * ranks, 5) for _ in range(ranks)]  # to scatter
        self.s = numbers(2 * ranks, 5)
        self.of_rows = parts(rows, ranks)
        self.of_depth = parts(depth, ranks)
        self.of_columns = parts(columns, ranks)
        everything = slice(None)
        own = case.comm_type
        self.x_part = [(everything, d) if case.is_summed else (r, everything)
                       for r, d in zip(self.of_rows, self.of_depth)]
        self.w_part = [(d, everything) if case.is_summed
                       else (everything, n if own == "all_gather" else everything)
                       for d, n in zip(self.of_depth, self.of_columns)]
        self.b_part = [n if own == "all_gather" else everything for n in self.of_columns]
        self.y_part = [(everything, n) if own == "all_gather"
                       else (everything, everything) if own == "all_reduce" else (r, everything)
                       for r, n in zip(self.of_rows, self.of_columns)]

    def bias(self):
        return Near(self.b if self.case.bias else np.zeros_like(self.b))

    def before(self):
        """The whole sum, before the activation."""
        x, w = Near(self.x), Near(self.w)
        if self.case.is_summed:
            z = summed([x[:, d] @ w[d] for d in self.of_depth], self.case.dtype)
        else:
            z = x @ w
        return z + self.bias()

    def result(self):
        z = self.before()
        return (gelu(z) if self.case.gelu else z).rounded(self.case.dtype)

    def gradients(self, cotangents):
        """Of what each rank has, where a loss is a sum over all ranks of cotangent * result."""
        case, dtype = self.case, self.case.dtype
        z = self.before().rounded(dtype)
        dz = []
        for c in cotangents:
            one = Near(c)
            dz.append((one * gelu_grad(z)).rounded(dtype) if case.gelu else one)
        x, w = Near(self.x), Near(self.w)
        dbias = [dz[k][self.y_part[k]].column_sums().rounded(dtype) for k in range(self.ranks)]
        if case.comm_type == "all_gather":
            dx = summed([dz[k][:, n] @ w[:, n].T for k, n in enumerate(self.of_columns)], dtype)
            dx = [dx[r] for r in self.of_rows]
            dw = [x.T @ dz[k][:, n] for k, n in enumerate(self.of_columns)]
        elif case.is_summed:
            if case.comm_type == "all_reduce" and case.sum_gradients:
                dz = [summed(dz, dtype)] * self.ranks
            if case.place == "unchecked":  # a part of the same on each, which are added up
                dz = [one.rounded(dtype, self.ranks) for one in dz]
            dx = [dz[k] @ w[d].T for k, d in enumerate(self.of_depth)]
            dw = [x[:, d].T @ dz[k] for k, d in enumerate(self.of_depth)]
        else:
            dx = [dz[k][r] @ w.T for k, r in enumerate(self.of_rows)]
            dw = [x[r].T @ dz[k][r] for k, r in enumerate(self.of_rows)]
        return ([one.rounded(dtype) for one in dx], [one.rounded(dtype) for one in dw], dbias)

    # ---- as arrays lie

    def lay_x(self, x):
        if self.case.lhs_transposed:
            return x.T
        return x.reshape(-1, 2, x.shape[-1]) if self.case.deep else x

    def lay_w(self, w):
        return w.T if self.case.rhs_transposed else w

    def lay_y(self, y):
        return y.reshape(-1, 2, y.shape[-1]) if self.case.deep else y


def near_laid(one, lay):
    return Near(lay(one.value), lay(one.error))


# ---- by shard_map


def _spec(case, rows, columns, is_transposed=False, is_deep=False):
    if is_transposed:
        return P(columns, rows)
    return P(rows, None, columns) if is_deep else P(rows, columns)


def specs(case):
    gathers = case.comm_type == "all_gather"
    cut_rows, cut_depth = (None, "tp") if case.is_summed else ("tp", None)
    of_y = {"all_gather": (None, "tp"), "all_reduce": (None, None)}.get(case.comm_type,
                                                                         ("tp", None))
    return (_spec(case, cut_rows, cut_depth, case.lhs_transposed, case.deep),
            _spec(case, "tp" if case.is_summed else None, "tp" if gathers else None,
                  case.rhs_transposed),
            P("tp" if gathers else None),
            _spec(case, *of_y, is_deep=case.deep))


def joined(case, question, gradients):
    """What all ranks have, as one."""
    dx, dw, dbias = gradients

    def together(parts, axis):
        return Near(np.concatenate([p.value for p in parts], axis),
                    np.concatenate([p.error for p in parts], axis))

    ranks = question.ranks
    if case.comm_type == "all_gather":
        return together(dx, 0), together(dw, 1), together(dbias, 0)
    if case.comm_type == "all_reduce":
        return together(dx, 1), together(dw, 0), dbias[0].rounded(case.dtype, ranks)
    if case.is_summed:
        return together(dx, 1), together(dw, 0), summed(dbias, case.dtype)
    return together(dx, 0), summed(dw, case.dtype), summed(dbias, case.dtype)


def in_shard_map(setting, case):
    question = Question(case, setting.ranks)
    x_spec, w_spec, b_spec, y_spec = specs(case)
    arrays = [setting.put(question.lay_x(question.x), x_spec),
              setting.put(question.lay_w(question.w), w_spec)]
    in_specs, out_specs = [x_spec, w_spec], y_spec
    if case.bias:
        arrays.append(setting.put(question.b, b_spec))
        in_specs.append(b_spec)
    is_bulk = case.method == "bulk"
    cotangent = setting.put(question.lay_y(question.c[0]), y_spec)
    if is_bulk:
        arrays.append(setting.put(np.concatenate(question.t), P("tp")))
        in_specs.append(P("tp"))
        out_specs = (y_spec, P("tp"))
        cotangent = (cotangent, setting.put(question.s, P("tp")))

    def layer(x, w, *rest):
        more = {"bias": rest[0]} if case.bias else {}
        if is_bulk:
            more["to_scatter"] = rest[-1]
        return sj.gemm(x, w, group=setting.group, **case.options, **more)

    mapped = jax.shard_map(layer, mesh=setting.mesh, in_specs=tuple(in_specs),
                           out_specs=out_specs, check_vma=case.place == "checked")

    @jax.jit
    def step(arrays, cotangent):
        result, back = jax.vjp(mapped, *arrays)
        return result, back(cotangent)

    result, gradients = step(arrays, cotangent)
    if is_bulk:
        result, scattered = result
        compare_shards("scattered", scattered,
                       summed([Near(t) for t in question.t], case.dtype).rounded(case.dtype))
        compare_shards("gradient of to_scatter", gradients[-1],
                       Near(np.concatenate([question.s] * setting.ranks)))
    compare_shards("result", result, near_laid(question.result(), question.lay_y))
    dx, dw, dbias = joined(case, question, question.gradients(question.c))
    compare_shards("gradient of lhs", gradients[0], near_laid(dx, question.lay_x))
    compare_shards("gradient of rhs", gradients[1], near_laid(dw, question.lay_w))
    if case.bias:
        compare_shards("gradient of bias", gradients[2], dbias)


# ---- each process by itself


def local(setting, case):
    question = Question(case, setting.ranks)
    me = setting.group.rank
    rows, depth, columns = question.sizes
    is_bulk = case.method == "bulk"
    options = case.options
    if case.uneven and case.comm_type == "all_gather":
        options.update(rows=rows, global_size=columns)
    elif case.uneven and case.is_summed:
        options.update(global_size=depth)
    arrays = [question.lay_x(question.x[question.x_part[me]]),
              question.lay_w(question.w[question.w_part[me]])]
    if case.bias:
        arrays.append(question.b[question.b_part[me]])
    cotangent = jnp.asarray(question.lay_y(question.c[me][question.y_part[me]]))
    local_scattered = parts(len(question.s), setting.ranks)[me]
    if is_bulk:
        arrays.append(question.t[me])
        cotangent = (cotangent, jnp.asarray(question.s[local_scattered]))

    def layer(x, w, *rest):
        more = {"bias": rest[0]} if case.bias else {}
        if is_bulk:
            more["to_scatter"] = rest[-1]
        return sj.gemm(x, w, group=setting.group, **options, **more)

    @jax.jit
    def step(arrays, cotangent):
        result, back = jax.vjp(layer, *arrays)
        return result, back(cotangent)

    result, gradients = step([jnp.asarray(a) for a in arrays], cotangent)
    if is_bulk:
        result, scattered = result
        expected = summed([Near(t) for t in question.t], case.dtype).rounded(case.dtype)
        compare("scattered", scattered, expected[local_scattered])
        compare("gradient of to_scatter", gradients[-1], Near(question.s))
    expected = question.result()[question.y_part[me]]
    compare("result", result, near_laid(expected, question.lay_y))
    dx, dw, dbias = question.gradients(question.c)
    compare("gradient of lhs", gradients[0], near_laid(dx[me], question.lay_x))
    compare("gradient of rhs", gradients[1], near_laid(dw[me], question.lay_w))
    if case.bias:
        compare("gradient of bias", gradients[2], dbias[me])


def cases(setting):
    """All choices in both types; the rest is drawn."""
    draw = random.Random(setting.seed)
    places = setting.arguments["places"]
    many = setting.arguments.get("all_places", False)
    seed = 1000 * setting.seed
    for number, (comm_type, method, atomic) in enumerate(all_choices()):
        for k, dtype in enumerate(("float32", "bfloat16")):
            for j, place in enumerate(places):
                if not many and (number + k) % len(places) != j:
                    continue
                seed += 1
                case = Case(comm_type, method, atomic, dtype, place, seed=seed,
                            gelu=draw.random() < 0.5, bias=draw.random() < 0.8,
                            rhs_transposed=draw.random() < 0.4, chunks=draw.choice((1, 3)),
                            tapered=draw.random() < 0.4)
                case.lhs_transposed = draw.random() < 0.3
                # The GEMM of a bulk transfer has the same size on all ranks (D808).
                case.uneven = place == "local" and draw.random() < 0.6 and method != "bulk"
                case.deep = not (case.lhs_transposed or case.uneven) and draw.random() < 0.4
                if comm_type == "all_reduce" and place == "local":
                    case.sum_gradients = draw.random() < 0.5
                check = local if place == "local" else in_shard_map
                yield str(case), functools.partial(check, setting, case)
