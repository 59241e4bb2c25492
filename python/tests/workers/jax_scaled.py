"""GEMMs in FP8, compared with numpy in double precision."""

from __future__ import annotations

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

from workers import jax_fp8 as fp8
from workers.jax_near import Near, compare, compare_shards, gelu, gelu_grad, summed
from workers.jax_products import all_choices, parts

MODES = ("current_tensor_scaling", "mxfp8_1d_scaling")


def together(made, axis):
    return Near(np.concatenate([m.value for m in made], axis),
                np.concatenate([m.error for m in made], axis))


def product(x, w):
    """Of codes: scales are multiplied in, which rounds a few times more."""
    return (x @ w).rounded("float32", 4)


# ---- a layer


@dataclasses.dataclass
class Layer:
    comm_type: str
    method: str
    atomic: bool
    dtype: str
    place: str
    mode: str
    gelu: bool
    chunks: int
    tapered: bool
    seed: int

    def __str__(self):
        return "layer " + " ".join(f"{f.name}={getattr(self, f.name)}"
                                   for f in dataclasses.fields(self))

    @property
    def is_summed(self):
        return self.comm_type in ("reduce_scatter", "all_reduce")

    @property
    def of_gradients(self):
        return "e4m3" if self.mode == "mxfp8_1d_scaling" else "e5m2"


class Question:
    """Whole matrices; what ranks have of them is rounded by each rank."""

    def __init__(self, layer, ranks):
        self.layer, self.ranks = layer, ranks
        rng = np.random.default_rng(layer.seed)
        rows, depth, columns = 4 * ranks, 40 * ranks, 36 * ranks
        self.of_rows, self.of_depth = parts(rows, ranks), parts(depth, ranks)
        self.of_columns = parts(columns, ranks)

        def numbers(*shape):
            spread = np.exp2(rng.integers(-3, 4, shape))
            return (rng.standard_normal(shape) * spread).astype(jnp.dtype(layer.dtype))

        self.x, self.w = numbers(rows, depth), numbers(depth, columns)
        self.b, self.c = numbers(columns), numbers(rows, columns)

    def _rounded(self, x, axis, form="e4m3"):
        return fp8.rounded(x, self.layer.mode, form, axis)

    def before(self):
        kind = self.layer.comm_type
        if self.layer.is_summed:
            z = summed([product(self._rounded(self.x[:, d], 1), self._rounded(self.w[d], 0))
                        for d in self.of_depth], self.layer.dtype)
        elif kind == "all_gather":
            x = together([self._rounded(self.x[r], 1) for r in self.of_rows], 0)
            z = together([product(x, self._rounded(self.w[:, n], 0)) for n in self.of_columns], 1)
        else:
            w = self._rounded(self.w, 0)
            z = together([product(self._rounded(self.x[r], 1), w) for r in self.of_rows], 0)
        return z + Near(self.b)

    def result(self):
        z = self.before()
        return (gelu(z) if self.layer.gelu else z).rounded(self.layer.dtype)

    def _coded(self, dz, form):
        """A gradient that goes into a product; only near, the code of a number may be the next."""
        if self.layer.gelu:
            return fp8.off_by_coding(dz, form)
        return self._rounded(dz.value, 1, form)

    def gradients(self):
        """Of whole matrices."""
        layer, dtype, form = self.layer, self.layer.dtype, self.layer.of_gradients
        dz = Near(self.c)
        if layer.gelu:
            dz = (dz * gelu_grad(self.before().rounded(dtype))).rounded(dtype)
        # Of an array that all have, parts are added up in its type.
        dbias = summed([dz[r].column_sums() for r in self.of_rows], dtype)
        if layer.comm_type == "all_reduce":  # each has a part of the same
            dbias = dz.column_sums().rounded(dtype, self.ranks)
        w_of = functools.partial(self._rounded, axis=1)
        if layer.comm_type == "all_gather":
            dx = summed([product(self._coded(dz[:, n], form), w_of(self.w[:, n]).T)
                         for n in self.of_columns], dtype)
            # What was gathered, in the type that it was written in.
            x = together([self._rounded(self.x[r], 1) for r in self.of_rows], 0).rounded(dtype)
            dw = x.T @ dz
        elif layer.is_summed:
            travelled = self._coded(dz, form)
            if layer.comm_type == "reduce_scatter":
                travelled = together([self._coded(dz[r], form) for r in self.of_rows], 0)
            dx = together([product(travelled, w_of(self.w[d]).T) for d in self.of_depth], 1)
            if layer.comm_type == "reduce_scatter":
                dz = travelled.rounded(dtype)
            dw = Near(self.x).T @ dz
        else:
            w = w_of(self.w)
            dx = together([product(self._coded(dz[r], form), w.T) for r in self.of_rows], 0)
            dw = summed([Near(self.x[r]).T @ dz[r] for r in self.of_rows], dtype)
        return dx.rounded(dtype), dw.rounded(dtype), dbias.rounded(dtype)


def check_layer(setting, layer):
    question = Question(layer, setting.ranks)
    gathers = layer.comm_type == "all_gather"
    x_spec = P(None, "tp") if layer.is_summed else P("tp", None)
    w_spec = P("tp" if layer.is_summed else None, "tp" if gathers else None)
    b_spec = P("tp" if gathers else None)
    y_spec = {"all_gather": P(None, "tp"), "all_reduce": P(None, None)}.get(layer.comm_type,
                                                                            P("tp", None))
    mapped = jax.shard_map(
        lambda x, w, b: sj.collective_dense(
            x, w, b, comm_type=layer.comm_type, comm_overlap_method=layer.method,
            atomic_gemm=layer.atomic, activation="gelu" if layer.gelu else None,
            scaling_mode=layer.mode, chunks=layer.chunks, tapered=layer.tapered,
            group=setting.group),
        mesh=setting.mesh, in_specs=(x_spec, w_spec, b_spec), out_specs=y_spec,
        check_vma=layer.place == "checked")

    @jax.jit
    def step(x, w, b, c):
        y, back = jax.vjp(mapped, x, w, b)
        return y, back(c)

    y, (dx, dw, dbias) = step(setting.put(question.x, x_spec), setting.put(question.w, w_spec),
                              setting.put(question.b, b_spec), setting.put(question.c, y_spec))
    compare_shards("result", y, question.result())
    for name, found, expected in zip(("lhs", "rhs", "bias"), (dx, dw, dbias),
                                     question.gradients()):
        compare_shards(f"gradient of {name}", found, expected)


def layers(setting):
    draw = random.Random(setting.seed)
    seed = 1000 * setting.seed
    for number, (comm_type, method, atomic) in enumerate(all_choices()):
        if method == "bulk":
            continue
        for k, mode in enumerate(MODES):
            seed += 1
            if (number + k) % 2 != setting.arguments["odd"]:
                continue
            layer = Layer(comm_type, method, atomic, ("float32", "bfloat16")[number // 2 % 2],
                          draw.choice(("checked", "unchecked")), mode,
                          gelu=draw.random() < 0.4, chunks=draw.choice((1, 3)),
                          tapered=draw.random() < 0.4, seed=seed)
            yield str(layer), functools.partial(check_layer, setting, layer)


# ---- codes that are given


@dataclasses.dataclass
class Codes:
    comm_type: str
    method: str
    atomic: bool
    mode: str
    forms: tuple[str, str]
    out: str
    rhs_transposed: bool
    swizzled: bool
    travels: str  # "", or a form: parts of sums as FP8
    seed: int

    def __str__(self):
        return "codes " + " ".join(f"{f.name}={getattr(self, f.name)}"
                                   for f in dataclasses.fields(self))


def check_codes(setting, case):
    me, ranks = setting.group.rank, setting.ranks
    rng = np.random.default_rng(case.seed)
    rows, depth, columns = 5 * ranks + 1, 70 * ranks + 1, 40 * ranks - 1
    x, w = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    of_rows, of_depth, of_columns = (parts(n, ranks) for n in (rows, depth, columns))
    is_summed = case.comm_type in ("reduce_scatter", "all_reduce")
    mode = "tensor" if case.mode != "mxfp8_1d_scaling" else case.mode

    def code(matrix, form, axis):
        codes, scales = fp8.coded(matrix, mode, form, axis)
        return codes, scales, Near(fp8.worth(codes, scales, axis))

    xs = [x[:, d] if is_summed else x[r] for r, d in zip(of_rows, of_depth)]
    ws = [w[d] if is_summed else w[:, n] if case.comm_type == "all_gather" else w
          for d, n in zip(of_depth, of_columns)]
    xs = [code(one, case.forms[0], 1) for one in xs]
    ws = [code(one, case.forms[1], 0) for one in ws]
    options = {}
    if case.comm_type == "all_gather":
        options.update(rows=rows, global_size=columns)
        y = product(together([one[2] for one in xs], 0), ws[me][2])
    elif is_summed:
        options.update(global_size=depth)
        made = [product(a[2], b[2]) for a, b in zip(xs, ws)]
        if case.travels:
            made = [fp8.off_by_coding(one, case.travels) for one in made]
            y = summed(made, "float32")
            if case.comm_type == "all_reduce":
                y = fp8.off_by_coding(y, case.travels)
        else:
            y = summed(made, case.out)
        if case.comm_type == "reduce_scatter":
            y = y[of_rows[me]]
    else:
        y = product(xs[me][2], ws[me][2])
    x_codes, x_scale, _ = xs[me]
    w_codes, w_scale, _ = ws[me]
    if case.rhs_transposed:
        w_codes, w_scale = w_codes.T, np.asarray(w_scale).T
    if case.swizzled:
        x_scale = fp8.swizzled(x_scale)
        w_scale = fp8.swizzled(w_scale) if case.rhs_transposed else w_scale
        options.update(lhs_scale_swizzled=True, rhs_scale_swizzled=case.rhs_transposed)
    if case.travels:
        options.update(comm_dtype=fp8.FORMATS[case.travels])

    @jax.jit
    def call(x, x_scale, w, w_scale):
        return sj.gemm(x, w, comm_type=case.comm_type, comm_overlap_method=case.method,
                       atomic_gemm=case.atomic, scaling_mode=case.mode, lhs_scale_inv=x_scale,
                       rhs_scale_inv=w_scale, rhs_transposed=case.rhs_transposed,
                       out_dtype=case.out, group=setting.group, **options)

    found = call(*map(jnp.asarray, (x_codes, x_scale, w_codes, w_scale)))
    compare("result", found, y.rounded(case.out))


def codes(setting):
    draw = random.Random(setting.seed)
    seed = 2000 * setting.seed
    for comm_type, method, atomic in all_choices():
        if method == "bulk":
            continue
        for mode in (*MODES, "delayed_tensor_scaling"):
            seed += 1
            form = draw.choice(("e4m3", "e5m2"))
            is_summed = comm_type in ("reduce_scatter", "all_reduce")
            case = Codes(comm_type, method, atomic, mode, (form, draw.choice(("e4m3", "e5m2"))),
                         out=draw.choice(("bfloat16", "float32")),
                         rhs_transposed=draw.random() < 0.5,
                         swizzled=mode == "mxfp8_1d_scaling" and draw.random() < 0.7,
                         travels=draw.choice(("", "e4m3", "e5m2")) if is_summed else "", seed=seed)
            yield str(case), functools.partial(check_codes, setting, case)
