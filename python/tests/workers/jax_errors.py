"""Errors that are raised before wrong results or a hang, on several devices of a process."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import shiplap
import shiplap.jax as sj
from jax.sharding import Mesh, PartitionSpec as P

from workers.jax_arguments import raised

SHAPES = {"all_gather": (P("tp"), P(None, "tp"), P(None, "tp")),
          "all_reduce": (P(None, "tp"), P("tp"), P()),
          "reduce_scatter": (P(None, "tp"), P("tp"), P("tp"))}


class Arrays:
    def __init__(self, setting):
        rng = np.random.default_rng(setting.seed)
        self.group, self.mesh = setting.group, setting.mesh
        self.x, self.w = (jnp.asarray(rng.standard_normal(shape), jnp.float32)
                          for shape in ((16, 8), (8, 12)))

    def call(self, kind, *, mesh=None, check_vma=False, group=None, axis="tp", **options):
        renamed = [P(*(axis if name == "tp" else name for name in spec)) for spec in SHAPES[kind]]
        return jax.jit(jax.shard_map(
            lambda x, w: sj.gemm(x, w, comm_type=kind, group=group or self.group, **options),
            mesh=mesh or self.mesh, in_specs=tuple(renamed[:2]), out_specs=renamed[2],
            check_vma=check_vma))(self.x, self.w)

    def sound(self):
        for kind in SHAPES:
            np.testing.assert_allclose(self.call(kind), self.x @ self.w, rtol=1e-5, atol=1e-5)


def scales_have_their_types(at):
    codes, scale = sj.quantize(at.x)
    w_codes, w_scale = sj.quantize(at.w, axis=0)
    exact = sj.dequantize(codes, scale) @ sj.dequantize(w_codes, w_scale)
    for one in (scale, float(scale), np.float64(scale)):
        y = sj.gemm(codes, w_codes, lhs_scale_inv=one, rhs_scale_inv=w_scale, scaling_mode=3,
                    out_dtype=jnp.float32)
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)
    y = sj.gemm(codes, w_codes, lhs_scale_inv=1, rhs_scale_inv=w_scale, scaling_mode=3,
                out_dtype=jnp.float32)
    np.testing.assert_allclose(y, exact / scale, rtol=1e-5, atol=1e-3)
    for wrong, mode in ((jnp.ones(2), 3), (jnp.ones((16, 1)), 2)):
        raised(shiplap.InputError, "scale", lambda: sj.gemm(
            codes, w_codes, lhs_scale_inv=wrong, rhs_scale_inv=w_scale, scaling_mode=mode))
    raised(shiplap.InputError, "quantize", lambda: sj.gemm(at.x, at.w, scaling_mode=2))
    raised(shiplap.InputError, "quantize", lambda: sj.gemm(at.x, at.w, lhs_scale_inv=3.0))
    nothing = jnp.zeros((0,))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 12), (0,), (0,), (0,))]
    by_hand = jax.ffi.ffi_call("shiplap_gemm", shapes)

    def act(scale=scale, alpha=nothing):
        with sj.diagnosed():
            jax.block_until_ready(by_hand(codes, scale, w_codes, w_scale, nothing, alpha,
                                          *(nothing for _ in range(3)),
                                          scaling_mode=np.int64(3)))
    act()
    for wrong in (jnp.uint8(1), jnp.bfloat16(1), jnp.ones(2)):
        raised(shiplap.InputError, "D817", functools.partial(act, wrong))
    raised(shiplap.InputError, "D817", functools.partial(act, alpha=jnp.ones(2)))


def meshes_are_those_of_the_group(at):
    """Otherwise the results would be wrong, or the call would hang."""
    devices = np.array(jax.devices())
    for kind in SHAPES:
        def act(kind=kind):
            with sj.diagnosed():
                jax.block_until_ready(at.call(kind, mesh=Mesh(devices[::-1], ("tp",))))
        raised(shiplap.InputError, ["D816", "order"], act)
        raised(shiplap.InputError, "2 devices", lambda k=kind: at.call(
            k, mesh=Mesh(devices.reshape(2, 2), ("dp", "tp"))))
    raised(shiplap.InputError, "shard_map", lambda: sj.gemm(at.x, at.w, comm_type="ag",
                                                            group=at.group))
    at.sound()


def sums_of_gradients_are_not_guessed(at):
    with sj.initialize(name="without a mesh") as other:
        raised(shiplap.InputError, "sum_gradients", lambda: at.call("all_reduce", group=other))
        y = at.call("all_reduce", group=other, sum_gradients=True)
        np.testing.assert_allclose(y, at.x @ at.w, rtol=1e-5, atol=1e-5)
    raised(shiplap.InputError, "closed", lambda: at.call("all_gather", group=other))


def what_is_added_is_the_same_everywhere(at):
    def layer(x, w):
        mine = jnp.full(12, jax.lax.axis_index("tp"), jnp.float32)
        return sj.gemm(x, w, comm_type="all_reduce", bias=mine, group=at.group)
    raised(shiplap.InputError, "bias varies", lambda: jax.shard_map(
        layer, mesh=at.mesh, in_specs=SHAPES["all_reduce"][:2], out_specs=P())(at.x, at.w))


def shapes_and_types_are_said_when_it_is_traced(at):
    wide = at.x.astype(jnp.bfloat16)
    for act in (lambda: sj.gemm(at.x, at.w, accumulate=jnp.ones((12, 16))),
                lambda: sj.gemm(at.x, at.w, accumulate=jnp.ones((16, 12), jnp.bfloat16)),
                lambda: sj.gemm(at.x, at.w, bias=jnp.ones((1, 12))),
                lambda: sj.gemm(at.x, at.w, bias=jnp.ones(11)),
                lambda: sj.gemm(at.x, at.w, out_dtype=jnp.bfloat16),
                lambda: sj.gemm(at.x, at.w, chunks=0),
                lambda: sj.gemm(wide, at.w),
                lambda: sj.grouped_gemm(wide, at.w[None], jnp.array([16])),
                lambda: sj.initialize(rank=0, size=2),
                lambda: sj.initialize(store_address="127.0.0.1:1", rank=3, size=2),
                lambda: sj.initialize("tp", at.mesh)):
        raised(shiplap.InputError, "", act)


def nothing_is_multiplied(at):
    none = at.x[:0]
    assert sj.gemm(none, at.w).shape == (0, 12)
    assert sj.gemm(jnp.ones((4, 0, 8)), at.w).shape == (4, 0, 12)
    slope = jax.grad(lambda w: sj.gemm(none, w).sum())(at.w)
    np.testing.assert_array_equal(slope, np.zeros((8, 12)))
    assert sj.quantize(none, "mxfp8_1d_scaling")[1].shape == (0, 1)


def mixed_precision_has_gradients(at):
    low = at.x.astype(jnp.bfloat16)
    for mode in ("mxfp8_1d_scaling", "current_tensor_scaling"):
        slope = jax.grad(lambda w, mode=mode: sj.collective_dense(low, w, scaling_mode=mode)
                         .astype(jnp.float32).sum())(at.w)
        assert slope.dtype == jnp.float32
        right = np.asarray(low, np.float32).T @ np.ones((16, 12), np.float32)
        np.testing.assert_allclose(slope, right, rtol=2**-7, atol=2**-7)


def failures_end_with_diagnosed(at):
    def bad():
        jax.block_until_ready(at.call("all_gather", comm_overlap_id=99))
    raised(jax.errors.JaxRuntimeError, "D806", bad)
    with sj.diagnosed():
        at.sound()

    def alone():
        with sj.diagnosed():
            jax.block_until_ready(sj.grouped_gemm(at.x, at.w[None], jnp.array([3])))
    error = raised(shiplap.InputError, "D814", alone)
    assert [one.code for one in error.diagnostics] == ["D814"]

    def users_own():
        with sj.diagnosed():
            raise RuntimeError("mine")
    assert not isinstance(raised(RuntimeError, "mine", users_own), shiplap.Error)


def cases(setting):
    at = Arrays(setting)
    for function in (scales_have_their_types, meshes_are_those_of_the_group,
                     sums_of_gradients_are_not_guessed, what_is_added_is_the_same_everywhere,
                     shapes_and_types_are_said_when_it_is_traced, nothing_is_multiplied,
                     mixed_precision_has_gradients, failures_end_with_diagnosed):
        yield function.__name__, functools.partial(function, at)
