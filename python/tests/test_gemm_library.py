"""The library that multiplies: pip's oneDNN, or plain loops with a warning."""

import dataclasses
import inspect
import subprocess
import sys

import pytest

from shiplap import _gemm_library

ABSENT = """
import importlib.metadata, warnings
def files(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.files = files
from shiplap import _gemm_library
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(_gemm_library.load(), _gemm_library.load())
    print(*(w.message for w in caught), sep="\\n")
"""


def test_one_dnn_of_pip_is_found():
    pytest.importorskip("torch")  # the environment without libraries has no oneDNN either
    assert _gemm_library.load().startswith("oneDNN")


def test_plain_loops_warn_once():
    run = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, check=True)
    names, *warned = run.stdout.strip().splitlines()
    if names.startswith("oneDNN"):
        pytest.skip("this build finds oneDNN in its own folder")
    assert names == "reference reference"
    (message,) = warned
    assert message.startswith("GEMMs run in plain loops")
    assert "pip install onednn-cpu-gomp" in message


def test_options_stand_for_the_arguments_of_a_gemm():
    jax = pytest.importorskip("jax")
    import shiplap.jax

    x, w = jax.numpy.ones((3, 4)), jax.numpy.arange(20.0).reshape(5, 4)
    options = shiplap.jax.GemmOptions(rhs_transposed=True)
    assert (shiplap.jax.gemm(x, w, options=options) == x @ w.T).all()
    assert (shiplap.jax.gemm(x, w.T, options=options, rhs_transposed=False) == x @ w.T).all()
    with pytest.raises(TypeError, match="rhs_transpose"):
        shiplap.jax.GemmOptions(rhs_transpose=True)
    defaults = {name: parameter.default
                for name, parameter in inspect.signature(shiplap.jax.gemm).parameters.items()}
    for field in dataclasses.fields(options):
        assert defaults[field.name] == field.default, field.name
    assert hash(options) == hash(dataclasses.replace(options))
    arrays = {"lhs", "rhs", "bias", "alpha", "accumulate", "lhs_scale_inv", "rhs_scale_inv",
              "to_scatter"}
    others = {"options", "collective_op"}
    assert set(defaults) == {f.name for f in dataclasses.fields(options)} | arrays | others


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_library_layers_without_communication_are_those_of_xla(dtype, monkeypatch):
    """Plain loops are many times slower."""
    jax = pytest.importorskip("jax")
    np = pytest.importorskip("numpy")
    import shiplap.jax

    random = np.random.default_rng(3)
    x, w, bias = (jax.numpy.asarray(random.standard_normal(shape), dtype)
                  for shape in ((24, 40), (32, 40), (32,)))

    def layer(x, w, bias):
        return shiplap.jax.gemm(x, w, bias=bias, activation="gelu", rhs_transposed=True,
                                rhs_axis_boundary=1)

    def loss(x, w, bias):
        return (layer(x, w, bias).astype("float32") ** 2).sum()

    def both():
        return layer(x, w, bias), jax.grad(loss, argnums=(0, 1, 2))(x, w, bias)

    def traced():  # anew: traces are kept by function
        return str(jax.make_jaxpr(lambda *operands: layer(*operands))(x, w, bias))

    ours = both()
    assert "shiplap_gemm" in traced()
    monkeypatch.setattr(_gemm_library, "is_fast", lambda: False)
    assert "shiplap_gemm" not in traced()
    theirs = both()
    tolerance = 2e-2 if dtype == "bfloat16" else 2e-6
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
        assert np.abs(a - b).max() <= tolerance * np.abs(a).max()
