"""shiplap.jax in FP8: bit-exact quantization, and GEMMs on processes and devices."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import shiplap  # noqa: E402
import shiplap.jax as sj  # noqa: E402
from workers import jax_fp8 as fp8  # noqa: E402
from workers.jax_ranks import failures  # noqa: E402

TINY = float(np.finfo(np.float32).smallest_subnormal)
HUGE = float(np.finfo(np.float32).max)


def special_blocks():
    """Rows of 32 numbers, each with a difficult case."""
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((64, 32)) * np.exp2(rng.integers(-140, 127, (64, 1)).astype(float))
    rows = [np.zeros(32), np.full(32, -0.0), np.full(32, TINY), np.linspace(0, 40 * TINY, 32),
            np.linspace(0, 2.0**-126, 32), np.linspace(-HUGE, HUGE, 32), np.full(32, 1e-38),
            np.linspace(-448, 448, 32), np.linspace(-57344, 57344, 32),
            np.where(np.arange(32) == 3, np.inf, 1.0), np.where(np.arange(32) == 3, -np.inf, HUGE),
            np.where(np.arange(32) == 9, np.nan, 1.0),
            np.where(np.arange(32) == 9, np.nan, np.inf)]
    for power in (-127, -126, -120, -9, -1, 0, 1, 8, 9, 110, 119):  # at a step of the scale
        for near in (np.nextafter(np.float32(448), np.float32(0)), np.float32(448),
                     np.nextafter(np.float32(448), np.float32(1e9))):
            rows.append(np.linspace(0, 1, 32) * np.ldexp(np.float64(near), power))
    with np.errstate(over="ignore"):
        return np.concatenate([np.stack(rows), wide]).astype(np.float32)


def bits(codes):
    return np.asarray(codes).view(np.uint8)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_blocks_are_rounded_as_documented_to_the_bit(form, compiled):
    x = special_blocks()

    def quantize(x):
        return sj.quantize(x, "mxfp8_1d_scaling", dtype=fp8.FORMATS[form])

    codes, scales = (jax.jit(quantize) if compiled else quantize)(jnp.asarray(x))
    expected, expected_scales = fp8.block_codes(x, form, -1)
    assert scales.dtype == jnp.uint8
    wrong = np.flatnonzero(np.asarray(scales)[:, 0] != expected_scales[:, 0])
    assert wrong.size == 0, (x[wrong], np.asarray(scales)[wrong], expected_scales[wrong])
    is_number = expected_scales[:, 0] != 255  # of NaN blocks the codes say nothing
    wrong = np.flatnonzero((bits(codes) != bits(expected)).any(1) & is_number)
    assert wrong.size == 0, (x[wrong], bits(codes)[wrong], bits(expected)[wrong])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_codes_of_blocks_are_worth_what_they_stand_for(form, compiled):
    codes, scales = fp8.block_codes(special_blocks(), form, -1)
    dequantize = jax.jit(sj.dequantize) if compiled else sj.dequantize
    found = np.asarray(dequantize(jnp.asarray(codes), jnp.asarray(scales)))
    with np.errstate(over="ignore"):
        expected = fp8.worth(codes, scales, -1).astype(np.float32)
    expected[np.abs(expected) < 2.0**-126] = 0  # as XLA has it
    wrong = np.flatnonzero(~np.array([np.array_equal(a, b, equal_nan=True)
                                      for a, b in zip(found, expected)]))
    assert wrong.size == 0, (scales[wrong], found[wrong], expected[wrong])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(70, 33), (32, 64), (5, 3)])
def test_blocks_lie_along_the_axis_and_the_last_may_be_shorter(shape, axis):
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    codes, scales = jax.jit(lambda x: sj.quantize(x, 2, axis=axis))(jnp.asarray(x))
    expected, expected_scales = fp8.block_codes(x, "e4m3", axis)
    np.testing.assert_array_equal(np.asarray(scales), expected_scales)
    np.testing.assert_array_equal(bits(codes), bits(expected))
    back = sj.dequantize(codes, scales, axis=axis)
    np.testing.assert_array_equal(np.asarray(back), fp8.worth(expected, expected_scales, axis))


def special_tensors():
    rng = np.random.default_rng(7)
    yield from special_blocks()
    yield rng.standard_normal(1000)
    yield np.zeros(0)
    yield np.array([0.0, TINY])
    yield np.array([1.0, HUGE])
    yield np.array([2.0**-149, 2.0**-140, 2.0**-130])


@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_tensors_are_rounded_as_documented_to_the_bit(form):
    quantize = jax.jit(lambda x: sj.quantize(x, dtype=fp8.FORMATS[form]))
    for x in special_tensors():
        x = np.asarray(x, np.float32)
        codes, scale_inv = quantize(jnp.asarray(x))
        expected, expected_inv = fp8.tensor_codes(x, form)
        assert scale_inv.dtype == jnp.float32
        assert float(scale_inv) == float(expected_inv), (x, scale_inv, expected_inv)
        is_nan = np.isnan(x)
        assert (bits(codes) == bits(expected))[~is_nan].all(), (x, codes, expected)
        assert np.isnan(np.asarray(codes).astype(np.float32))[is_nan].all()


def test_bf16_is_rounded_as_the_float_that_it_is():
    x = special_blocks().astype(jnp.bfloat16)
    codes, scales = sj.quantize(jnp.asarray(x), 2)
    expected, expected_scales = fp8.block_codes(x, "e4m3", -1)
    np.testing.assert_array_equal(np.asarray(scales), expected_scales)
    is_number = expected_scales[:, 0] != 255
    np.testing.assert_array_equal(bits(codes)[is_number], bits(expected)[is_number])


def test_words_that_there_are_not_are_refused():
    x = jnp.ones((2, 2))
    with pytest.raises(shiplap.InputError, match="scaling_mode = nvfp4: choose no_scaling"):
        sj.quantize(x, "nvfp4")
    with pytest.raises(shiplap.InputError, match="current_tensor_scaling"):
        sj.quantize(x, "delayed_tensor_scaling")
    with pytest.raises(shiplap.InputError, match="unsupported dtype int8"):
        sj.quantize(x, dtype=jnp.int8)


@pytest.mark.parametrize("processes,devices,odd", [(2, 1, 0), (1, 4, 1)])
def test_layers_and_gradients_are_those_of_rounded_factors(processes, devices, odd):
    wrong = failures("jax_scaled:layers", processes, devices, odd=odd, least=14)
    assert not wrong, wrong


@pytest.mark.parametrize("processes", [2, 4])
def test_products_of_given_codes_are_those_of_what_they_stand_for(processes):
    wrong = failures("jax_scaled:codes", processes, seed=processes, least=42)
    assert not wrong, wrong
