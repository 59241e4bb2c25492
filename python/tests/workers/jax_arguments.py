"""Alternative arguments, and invalid ones."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import shiplap
import shiplap.jax as sj
from jax.sharding import PartitionSpec as P

from workers.jax_near import Near, compare, compare_shards, summed
from workers.jax_products import parts


def raised(kind, text, act):
    """The exception that `act` must raise."""
    try:
        act()
    except kind as error:
        for part in [text] if isinstance(text, str) else text:
            assert part in str(error), f"{part!r} is not in: {error}"
        return error
    raise AssertionError(f"nothing was raised; expected {kind} with {text!r}")


class Local:
    """Each process has a part of the rows and all of the weights."""

    def __init__(self, setting):
        self.setting, self.group = setting, setting.group
        rng = np.random.default_rng(setting.seed)
        self.me, ranks = setting.group.rank, setting.ranks
        self.whole = rng.standard_normal((6 * ranks, 8)).astype(np.float32)
        self.of_rows = parts(6 * ranks, ranks)
        self.x = jnp.asarray(self.whole[self.of_rows[self.me]])
        self.weights = rng.standard_normal((8, 5)).astype(np.float32)
        self.w = jnp.asarray(self.weights)
        self.gathered = Near(self.whole) @ Near(self.weights)

    def gemm(self, *arrays, **options):
        arrays = arrays or (self.x, self.w)
        return jax.jit(lambda x, w: sj.gemm(x, w, group=self.group, **options))(*arrays)

    def sound(self, **options):
        """A GEMM works, whatever happened before."""
        found = self.gemm(comm_type="all_gather", **options)
        compare("all_gather", found, self.gathered.rounded("float32"))


# ---- buffers


def _no_such_buffer(at, number):
    """Or none that fits."""
    jax.block_until_ready(at.gemm(comm_type="ag", comm_overlap_id=number))


def buffers_have_numbers(at):
    shape = at.whole.shape
    first, second = (sj.create_buffer("ag", buffer_shape=shape, buffer_dtype=jnp.float32,
                                      group=at.group) for _ in range(2))
    assert first != second
    for number in (first, second, first):
        at.sound(comm_overlap_id=number)
    sj.destroy_buffer(first, group=at.group)
    at.sound(comm_overlap_id=second)
    raised(jax.errors.JaxRuntimeError, "D806",
           lambda: _no_such_buffer(at, first))
    raised(shiplap.InputError, "D806", lambda: sj.destroy_buffer(first, group=at.group))
    at.sound()
    sj.destroy_all_buffers(group=at.group)
    at.sound()
    assert at.group.memory()


def an_old_failure_is_not_taken_for_a_new_one(at):
    raised(jax.errors.JaxRuntimeError, "no buffer 998", lambda: _no_such_buffer(at, 998))

    def act():
        with sj.diagnosed():
            _no_such_buffer(at, 999)
    raised(shiplap.InputError, "no buffer 999", act)


def a_number_of_no_buffer_is_diagnosed(at):
    def act():
        with sj.diagnosed():
            _no_such_buffer(at, 999)
    error = raised(shiplap.InputError, ["D806", "999"], act)
    assert [one.code for one in error.diagnostics] == ["D806"]
    assert isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    at.sound()


def a_buffer_of_another_shape_is_refused(at):
    number = sj.create_buffer("ag", buffer_shape=(6 * at.setting.ranks, 9),
                              buffer_dtype=jnp.float32, group=at.group)
    raised(jax.errors.JaxRuntimeError, "error[D8",
           lambda: _no_such_buffer(at, number))
    sj.destroy_buffer(number, group=at.group)
    at.sound()


def a_buffer_for_something_else_is_refused(at):
    number = sj.create_buffer("rs", buffer_shape=at.whole.shape, buffer_dtype=jnp.float32,
                              group=at.group)
    raised(jax.errors.JaxRuntimeError, "error[D8",
           lambda: _no_such_buffer(at, number))
    sj.destroy_buffer(number, group=at.group)
    at.sound()


# ---- arguments


def what_there_is_not_is_said_when_it_is_traced(at):
    for options in ({"comm_type": "ag", "comm_overlap_method": "bulk"},
                    {"comm_type": "ag", "comm_overlap_method": "pipeline"},
                    {"comm_type": "ar", "comm_overlap_method": "bulk"},
                    {"comm_type": "rs", "comm_overlap_method": "none", "atomic_gemm": True},
                    {"comm_type": "none", "comm_overlap_method": "ring_exchange"}):
        error = raised(shiplap.InputError, "D800", lambda: at.gemm(**options))
        assert error.diagnostics[0].code == "D800" and error.diagnostics[0].help
    for options, text in (({"comm_type": "all_to_all"}, "all_to_all"),
                          ({"comm_type": "ag", "comm_overlap_method": "tree"}, "tree"),
                          ({"activation": "relu"}, "activation = relu"),
                          ({"scaling_mode": "nvfp4"}, "scaling_mode = nvfp4"),
                          ({"scaling_mode": 4}, "scaling_mode = 4"),
                          ({"collective_op": 3}, "collective_op = 3"),
                          ({"collective_op": 1, "comm_type": "ag"}, "not both"),
                          ({"return_gathered": True}, "return_gathered"),
                          ({"to_scatter": at.x}, "to_scatter"),
                          ({"comm_type": "rs", "comm_overlap_method": "bulk"}, "to_scatter"),
                          ({"lhs_axis_boundary": 2}, "lhs_axis_boundary"),
                          ({"lhs_transposed": True}, "inner dimensions differ")):
        raised(shiplap.InputError, text, lambda: at.gemm(**options))
    raised(shiplap.InputError, "float32", lambda: at.gemm(at.x, at.w.astype(jnp.bfloat16)))
    raised(shiplap.InputError, "int32",
           lambda: at.gemm(at.x.astype(jnp.int32), at.w.astype(jnp.int32)))
    raised(shiplap.InputError, "dimensions", lambda: at.gemm(at.x[0], at.w))
    raised(shiplap.InputError, "delayed",
           lambda: sj.collective_dense(at.x, at.w, scaling_mode="delayed_tensor_scaling"))
    raised(shiplap.InputError, "bulk",
           lambda: sj.collective_dense(at.x, at.w, comm_type="rs", comm_overlap_method="bulk",
                                       scaling_mode=2, group=at.group))
    at.sound()


def words_of_transformer_engine(at):
    whole = at.gathered.rounded("float32")
    own = whole[at.of_rows[at.me]]
    compare("0", at.gemm(collective_op=0), own)
    compare("1", at.gemm(collective_op=1), whole)
    ranks = at.setting.ranks
    w = at.w[:, None, :].repeat(1, 1)
    compare("3 dimensions of rhs", at.gemm(at.x, w)[:, 0], own)
    alike = jnp.asarray(at.whole)
    found = at.gemm(alike, at.w, collective_op=2)
    compare("2", found, summed([at.gathered] * ranks, "float32").rounded("float32")
            [at.of_rows[at.me]])


def sizes_of_groups_must_add_up(at):
    w = at.w[None].repeat(2, 0)

    def call(sizes, **options):
        return jax.block_until_ready(jax.jit(lambda s: sj.grouped_gemm(
            at.x, w, s, group=at.group, **options))(jnp.array(sizes, jnp.int32)))

    for options in ({}, {"comm_type": "ag"}):
        for sizes in ([1, 2], [6, 6], [7, -1]):
            raised(jax.errors.JaxRuntimeError, "D814", lambda: call(sizes, **options))
        compare("good sizes", call([2, 4], **options),
                (at.gathered if options else at.gathered[at.of_rows[at.me]]).rounded("float32"))
    raised(shiplap.InputError, "give int32",
           lambda: sj.grouped_gemm(at.x, w, jnp.array([2.0, 4.0])))
    raised(shiplap.InputError, "a number for each group",
           lambda: sj.grouped_gemm(at.x, w, jnp.array([6])))
    raised(shiplap.InputError, "bulk",
           lambda: sj.grouped_gemm(at.x, w, jnp.array([2, 4]), comm_type="rs",
                                   comm_overlap_method="bulk", group=at.group))


# ---- further features of a GEMM


def alpha_and_what_is_added_to(at):
    add = np.random.default_rng(3).standard_normal(at.gathered.value.shape).astype(np.float32)
    kept = jnp.asarray(add)
    found = at.gemm(comm_type="ag", alpha=0.5, accumulate=kept)
    expected = at.gathered * Near(np.full((1, 1), 0.5)) + Near(add)
    compare("alpha, accumulate", found, expected.rounded("float32"))
    np.testing.assert_array_equal(np.asarray(kept), add)  # it was lent, not given away


def gathered_rows_are_a_result_with_a_derivative(at, columns):
    """Also where ranks do not have as many columns each."""
    ranks = at.setting.ranks
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((8, columns)).astype(np.float32)
    own = [weights[:, n] for n in parts(columns, ranks)]
    c = [rng.standard_normal((6 * ranks, w.shape[1])).astype(np.float32) for w in own]
    d = [rng.standard_normal(at.whole.shape).astype(np.float32) for _ in range(ranks)]

    @jax.jit
    def step(x, w, c, d):
        made, back = jax.vjp(lambda x, w: sj.gemm(x, w, comm_type="ag", return_gathered=True,
                                                  global_size=columns, group=at.group), x, w)
        return made, back((c, d))

    (y, rows), (dx, dw) = step(at.x, *map(jnp.asarray, (own[at.me], c[at.me], d[at.me])))
    compare("result", y, (Near(at.whole) @ Near(own[at.me])).rounded("float32"))
    compare("gathered", rows, Near(at.whole))
    dx_all = summed([Near(one) @ Near(w).T for one, w in zip(c, own)], "float32") \
        + summed([Near(one) for one in d], "float32")
    compare("gradient of lhs", dx, dx_all.rounded("float32")[at.of_rows[at.me]])
    compare("gradient of rhs", dw, (Near(at.whole).T @ Near(c[at.me])).rounded("float32"))


def halves_are_multiplied(at):
    x, w = at.x.astype(jnp.float16), at.w.astype(jnp.float16)
    found = at.gemm(x, w, comm_type="ag")
    right = Near(at.whole.astype(np.float16)) @ Near(at.weights.astype(np.float16))
    compare("float16", found, right.rounded("float16"))


def ranks_without_rows(at):
    """Fewer rows than ranks: the last have none."""
    ranks = at.setting.ranks
    own = parts(ranks - 1, ranks)[at.me]
    whole = at.whole[:ranks - 1]

    def step(x, c):
        made, back = jax.vjp(lambda x, w: sj.gemm(x, w, comm_type="ag", rows=ranks - 1,
                                                  group=at.group), x, at.w)
        return made, back(c)

    y, (dx, dw) = jax.jit(step)(jnp.asarray(whole[own]), jnp.ones((ranks - 1, 5), jnp.float32))
    compare("result", y, at.gathered[:ranks - 1].rounded("float32"))
    ones = Near(np.ones((ranks - 1, 5)))
    compare("gradient of lhs", dx, summed([ones @ Near(at.weights).T] * ranks, "float32")[own])
    compare("gradient of rhs", dw, (Near(whole).T @ ones).rounded("float32"))


# ---- groups


def two_axes_of_a_mesh(setting):
    """Products over either; each group is called with its own weights."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, -1), ("dp", "tp"))
    many = mesh.shape["tp"]
    rng = np.random.default_rng(setting.seed)
    x, up, down, c = (rng.standard_normal((8 * many, 8 * many)).astype(np.float32)
                      for _ in range(4))
    with sj.initialize(mesh, "tp") as tp, sj.initialize(mesh, "dp") as dp:
        raised(shiplap.InputError, "3 groups", lambda: sj.gemm(x, up, comm_type="ag"))

        def network(x, up, down):
            wide = sj.gemm(x, up, comm_type="ag", group=tp)  # rows of this dp, columns of this tp
            return sj.gemm(wide, down, comm_type="ag", group=dp)

        for checks in (True, False):
            mapped = jax.shard_map(network, mesh=mesh,
                                   in_specs=(P(("dp", "tp"), None), P(None, "tp"), P("tp", "dp")),
                                   out_specs=P("tp", "dp"), check_vma=checks)
            # The result of each tp is that of its own depth: they lie one below the other.
            laid = [setting.put(a, spec, mesh) for a, spec in
                    zip((x, up, down), (P(("dp", "tp"), None), P(None, "tp"), P("tp", "dp")))]
            rows = np.concatenate([c] * many)

            @jax.jit
            def step(x, up, down, c, mapped=mapped):
                y, back = jax.vjp(mapped, x, up, down)
                return y, back(c)

            y, (dx, dup, ddown) = step(*laid, setting.put(rows, P("tp", "dp"), mesh))
            cut = parts(8 * many, many)
            wide = Near(x) @ Near(up)
            below = [wide[:, d] @ Near(down)[d] for d in cut]
            compare_shards("result", y, Near(np.concatenate([b.value for b in below]),
                                             np.concatenate([b.error for b in below]))
                           .rounded("float32"))
            dp_cut = parts(8 * many, 2)
            dwide = summed([Near(c)[:, n] @ Near(down)[:, n].T for n in dp_cut], "float32")
            compare_shards("gradient of x", dx, summed(
                [dwide[:, d] @ Near(up)[:, d].T for d in cut], "float32").rounded("float32"))
            compare_shards("gradient of up", dup, summed(
                [Near(x)[r].T @ dwide[r] for r in dp_cut], "float32").rounded("float32"))
            compare_shards("gradient of down", ddown, (wide.T @ Near(c)).rounded("float32"))


def a_closed_group_is_missed(setting):
    """And other groups still work."""
    closed = sj.initialize(setting.mesh, name="short")
    x = np.ones((2 * setting.ranks, 2), np.float32)
    laid, right = setting.put(x, P("tp")), Near(x @ np.ones((2, 2)))

    def call_in(group):
        return jax.jit(jax.shard_map(
            lambda x: sj.gemm(x, jnp.ones((2, 2)), comm_type="ag", group=group),
            mesh=setting.mesh, in_specs=P("tp"), out_specs=P(), check_vma=False))

    call = call_in(closed)
    compare_shards("result", call(laid), right)
    closed.close()

    def act():
        with sj.diagnosed():
            jax.block_until_ready(call(laid))
    raised((jax.errors.JaxRuntimeError, shiplap.InputError), "D816", act)
    compare_shards("result", call_in(setting.group)(laid), right)


def cases(setting):
    at = Local(setting)
    for function in (buffers_have_numbers, a_number_of_no_buffer_is_diagnosed,
                     a_buffer_of_another_shape_is_refused, a_buffer_for_something_else_is_refused,
                     what_there_is_not_is_said_when_it_is_traced, words_of_transformer_engine,
                     sizes_of_groups_must_add_up, alpha_and_what_is_added_to,
                     halves_are_multiplied):
        yield function.__name__, functools.partial(function, at)
    for columns in (4 * setting.ranks, 4 * setting.ranks + 1):
        yield f"gathered rows as a result, {columns} columns", functools.partial(
            gathered_rows_are_a_result_with_a_derivative, at, columns)
    yield a_closed_group_is_missed.__name__, functools.partial(a_closed_group_is_missed, setting)


def meshes(setting):
    yield two_axes_of_a_mesh.__name__, functools.partial(two_axes_of_a_mesh, setting)


def after_failures(setting):
    """A failed call must not affect later ones."""
    yield a_closed_group_is_missed.__name__, functools.partial(a_closed_group_is_missed, setting)
    if setting.ranks == setting.processes:
        yield (an_old_failure_is_not_taken_for_a_new_one.__name__,
               functools.partial(an_old_failure_is_not_taken_for_a_new_one, Local(setting)))


def empty(setting):
    yield ranks_without_rows.__name__, functools.partial(ranks_without_rows, Local(setting))
