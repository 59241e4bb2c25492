"""shiplap.jax on processes and devices: GEMMs with their communication, and derivatives."""

import re
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import shiplap.jax as sj  # noqa: E402
from workers.jax_ranks import failures  # noqa: E402

CHOICES = 15  # at least as many as there were when this was written


@pytest.mark.parametrize("processes,devices,places,all_places", [
    (2, 1, ["checked", "unchecked", "local"], True),
    (4, 1, ["checked", "local", "unchecked"], False),
    (2, 2, ["checked", "unchecked"], False),
    (1, 4, ["unchecked", "checked"], False)])
def test_all_products_and_gradients_are_those_of_the_gathered_arrays(processes, devices, places,
                                                                     all_places):
    least = CHOICES * 2 * (len(places) if all_places else 1)
    wrong = failures("jax_products:cases", processes, devices, places=places,
                     all_places=all_places, least=least)
    assert not wrong, wrong


@pytest.mark.parametrize("processes,devices", [(2, 1), (4, 1), (2, 2), (1, 4)])
def test_calls_in_any_order_end_with_the_right_results_and_copy_nothing(processes, devices):
    kinds = (["scan", "checkpoint", "cond"] if processes == 2 and devices == 1 else
             ["scan checkpoint", "scan cond"])
    wrong = failures("jax_order:cases", processes, devices, kinds=kinds, least=10)
    assert not wrong, wrong


@pytest.mark.parametrize("processes,devices,steps,size,programs", [
    (2, 1, 60, 128, 4), (4, 1, 60, 32, 2), (2, 2, 60, 32, 3), (1, 4, 60, 32, 2)])
def test_calls_among_sums_of_xla_do_not_keep_its_threads(processes, devices, steps, size, programs):
    wrong = failures("jax_crowd:cases", processes, devices, steps=steps, size=size, calls=40,
                     programs=programs, least=programs, threads=2, timeout=240)
    assert not wrong, wrong


def calls_in(function, *arrays):
    """Of a program before it is compiled: (type, method, atomic) of each call that communicates,
    the token that it takes, and the one that it gives."""
    made = []
    for line in jax.jit(function).lower(*arrays).as_text().splitlines():
        found = re.search(r"(%\w+):(\d+) = stablehlo.custom_call @shiplap_gemm\((.*?)\)", line)
        said = dict(re.findall(r'(\w+) = "?(\w+)', line))
        if found and said["comm_type"] != "none":
            name, results, operands = found.groups()
            made.append(((said["comm_type"], said["comm_overlap_method"],
                          said["atomic_gemm"] == "true"),
                         operands.split(", ")[-1], f"{name}#{int(results) - 1}"))
    return made


def test_every_call_waits_for_the_token_of_the_one_before():
    x = jnp.ones((4, 4))
    with sj.initialize() as group:
        def program(x, w):
            return [sj.gemm(x + k, w, comm_type=("ag", "rs", "ar")[k % 3], group=group)
                    for k in range(7)]
        calls = calls_in(program, x, x)
    assert len(calls) == 7
    assert calls[0][1] == "%arg0"  # that of the program before
    assert [takes for _, takes, _ in calls[1:]] == [gives for _, _, gives in calls[:-1]]


@pytest.mark.parametrize("there,back", [
    (("all_gather", "ring_exchange", True), ("reduce_scatter", "ring_exchange", True)),
    (("all_gather", "none", False), ("reduce_scatter", "none", False)),
    (("reduce_scatter", "ring_exchange", False), ("all_gather", "ring_exchange", False)),
    (("reduce_scatter", "pipeline", True), ("all_gather", "ring_exchange", True)),
    (("reduce_scatter", "none", False), ("all_gather", "none", False)),
    (("all_reduce", "ring_exchange", False), None)])
def test_the_way_back_is_overlapped_as_the_way_there(there, back):
    comm_type, method, atomic = there
    x = jnp.ones((4, 4))
    with sj.initialize() as group:
        def loss(x, w):
            return sj.gemm(x, w, comm_type=comm_type, comm_overlap_method=method,
                           atomic_gemm=atomic, group=group).sum()
        calls = [call for call, _, _ in calls_in(jax.grad(loss, argnums=(0, 1)), x, x)]
    assert calls == [there, *([back] if back else [])]


def test_without_jax_it_says_what_to_install():
    code = ("import sys; sys.modules['jax'] = None; import shiplap\n"
            "try:\n    import shiplap.jax\n"
            "except ImportError as error:\n"
            "    assert isinstance(error, shiplap.MissingDependency), error\n"
            "    print(error)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=True).stdout
    assert "pip install 'shiplap[jax]'" in said


@pytest.mark.parametrize("word,value", [("comm_type", "gather"), ("comm_overlap_method", "ring"),
                                        ("activation", "relu"), ("comm_type", 1)])
def test_a_handler_that_is_called_by_hand_refuses_words_that_there_are_not(word, value):
    x, nothing = jnp.ones((4, 4)), jnp.zeros((0,))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 4), (0,), (0,), (0,))]
    call = jax.ffi.ffi_call("shiplap_gemm", shapes)
    operands = (x, nothing, x, *(nothing for _ in range(6)))
    assert jnp.array_equal(call(*operands)[0], x @ x)
    given = np.int64(value) if isinstance(value, int) else value
    with pytest.raises(jax.errors.JaxRuntimeError, match="D817"):
        jax.block_until_ready(call(*operands, **{word: given}))
