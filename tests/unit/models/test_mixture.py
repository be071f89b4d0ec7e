"""Which type each tensor gets: the rules that llama.cpp's quantizer follows.

`benchmarks/quantize_files.py` compares whole files with llama.cpp's, for models of many kinds.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidArgument, InvalidModelFile
from corral.gguf import Metadata, TensorInfo
from corral.models.mixture import MIXTURES, fitting, is_quantizable, mixture, tensor_types
from corral.quant.types import DType

F32, F16, Q4_0, Q4_K, Q5_K, Q6_K = (
    *(DType.F32, DType.F16, DType.Q4_0),
    *(DType.Q4_K, DType.Q5_K, DType.Q6_K),
)
Q5_0, Q5_1, Q8_0 = DType.Q5_0, DType.Q5_1, DType.Q8_0


def model(layers=20, *, family="llama", columns=256, tied=False, experts=0, sharing=2):
    """Return metadata and tensors of a model whose matrices are F32."""
    shapes = {"token_embd.weight": (300, columns), "output_norm.weight": (columns,)}
    if not tied:
        shapes["output.weight"] = (300, columns)
    values = "attn_qkv" if family == "falcon" else "attn_v"
    for layer in range(layers):
        names = ["attn_q", "attn_k", values, "attn_output", "ffn_up", "ffn_gate", "ffn_down"]
        shapes |= {f"blk.{layer}.{name}.weight": (columns, columns) for name in names}
        shapes[f"blk.{layer}.attn_norm.weight"] = (columns,)
    keys = {
        "general.architecture": family,
        f"{family}.block_count": layers,
        f"{family}.attention.head_count": 8,
        f"{family}.attention.head_count_kv": 8 // sharing,
        f"{family}.expert_count": experts,
    }
    tensors = [TensorInfo(name, F32, shape, 0, 0) for name, shape in shapes.items()]
    return Metadata.of(keys), tensors


def layers_with(types, name, dtype):
    """Return the layers in which a matrix has a type."""
    return [n for n in range(100) if types.get(f"blk.{n}.{name}.weight") is dtype]


def test_q4_k_m_spends_more_on_some_layers():
    """The first and the last eighth and each third between get six bits for values and ffn_down."""
    types = tensor_types(*model(20), mixture("Q4_K_M"))
    more = [0, 1, 4, 7, 10, 13, 16, 17, 18, 19]
    for name in ("attn_v", "ffn_down"):
        assert layers_with(types, name, Q6_K) == more
        assert len(layers_with(types, name, Q4_K)) == 10
    assert types["output.weight"] is Q6_K
    assert types["token_embd.weight"] is Q4_K
    assert types["blk.3.attn_norm.weight"] is F32
    assert Counter(types.values()) == {Q6_K: 21, Q4_K: 121, F32: 21}


def test_q5_k_m_has_the_same_layers():
    """Q5_K_M differs from Q4_K_M in its base type."""
    four, five = (tensor_types(*model(20), mixture(name)) for name in ("Q4_K_M", "Q5_K_M"))
    assert {name: Q5_K if dtype is Q4_K else dtype for name, dtype in four.items()} == five


def test_small_mixtures_spend_more_on_the_first_layers():
    """Q4_K_S gives five bits to values in four layers and ffn_down in an eighth; Q5_K_S to none."""
    types = tensor_types(*model(20), mixture("Q4_K_S"))
    assert layers_with(types, "attn_v", Q5_K) == [0, 1, 2, 3]
    assert layers_with(types, "ffn_down", Q5_K) == [0, 1]
    types = tensor_types(*model(20), mixture("Q5_K_S"))
    assert Counter(types.values()) == {Q5_K: 141, Q6_K: 1, F32: 21}


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K", "F16", "F32", "BF16"])
def test_plain_types_are_the_same_in_all_layers(name: str):
    """Only the output may differ: six bits, unless there are eight or all are floats."""
    types = tensor_types(*model(20), mixture(name))
    output = types.pop("output.weight")
    base = DType[name]
    assert output is (Q6_K if name == "Q4_0" else base)
    assert {t for n, t in types.items() if "norm" not in n} == {base}


def test_embeddings_that_are_the_output_are_treated_so():
    """A model without an output matrix has its embeddings in six bits."""
    assert tensor_types(*model(tied=True), mixture("Q4_0"))["token_embd.weight"] is Q6_K
    assert tensor_types(*model(tied=True), mixture("F16"))["token_embd.weight"] is F16


def test_pure_means_one_type():
    """With `is_pure` there is one type, but for what is never rounded."""
    types = tensor_types(*model(20), mixture("Q4_K_M"), is_pure=True)
    assert Counter(types.values()) == {Q4_K: 142, F32: 21}


def test_rows_that_fit_no_block_fall_back():
    """Rows that are no multiple of 256 have types with blocks of 32, and other rows F16."""
    types = tensor_types(*model(20, columns=96), mixture("Q4_K_M"))
    assert Counter(types.values()) == {Q5_0: 121, Q8_0: 21, F32: 21}
    assert types["output.weight"] is Q8_0
    types = tensor_types(*model(2, columns=96), mixture("Q5_K_S"), is_pure=True)
    assert Counter(types.values()) == {Q5_1: 16, F32: 3}
    types = tensor_types(*model(2, columns=100), mixture("Q4_K_M"))
    assert Counter(types.values()) == {F16: 16, F32: 3}


@given(st.sampled_from([t for t in DType if t.value.ggml_id is not None]), st.integers(1, 5000))
def test_what_fits_fits(dtype: DType, columns: int):
    """Whatever stands in for a type can hold the rows, and a type that can is kept."""
    found = fitting(dtype, columns)
    assert columns % found.block_elements == 0
    assert (found is dtype) == (columns % dtype.block_elements == 0)


def test_eight_experts_have_their_own_rules():
    """With eight experts keys and values get eight bits, and in Q4_K the outputs five."""
    types = tensor_types(*model(20, experts=8), mixture("Q4_K_M"))
    for name in ("attn_k", "attn_v"):
        assert len(layers_with(types, name, Q8_0)) == 20
    assert len(layers_with(types, "attn_output", Q5_K)) == 20
    types = tensor_types(*model(20, experts=8), mixture("Q4_0"))
    assert len(layers_with(types, "attn_output", Q4_0)) == 20


def test_experts_count_layers_by_name():
    """Where experts lie one by one, the layer is what the name says, and its end is the model's."""
    metadata, tensors = model(8, experts=4)
    table = [t for t in tensors if "ffn_down" not in t.name or t.name.startswith("blk.7.")]
    types = tensor_types(metadata, table, mixture("Q4_K_M"))
    assert types["blk.7.ffn_down.weight"] is Q6_K


def test_three_bits_spend_more_on_what_matters():
    """Q3_K_M gives four bits to ffn_down and outputs, five to the first; Q3_K_L five to all."""
    types = tensor_types(*model(32), mixture("Q3_K_M"))
    assert layers_with(types, "attn_v", Q5_K) == [0, 1]
    assert layers_with(types, "ffn_down", Q5_K) == [0, 1]
    for name, count in (("attn_v", 30), ("ffn_down", 30), ("attn_output", 32)):
        assert len(layers_with(types, name, Q4_K)) == count
    types = tensor_types(*model(32), mixture("Q3_K_L"))
    for name in ("attn_v", "ffn_down", "attn_output"):
        assert len(layers_with(types, name, Q5_K)) == 32
    types = tensor_types(*model(32), mixture("Q3_K_S"))
    assert Counter(types.values()) == {DType.Q3_K: 225, Q6_K: 1, F32: 33}


@pytest.mark.parametrize(("sharing", "values"), [(1, DType.Q3_K), (2, DType.Q3_K), (4, Q4_K)])
def test_two_bits_depend_on_how_values_are_shared(sharing: int, values: DType):
    """Q2_K gives three bits to ffn_down and outputs, and values four if many heads share them."""
    types = tensor_types(*model(20, sharing=sharing), mixture("Q2_K"))
    assert len(layers_with(types, "attn_v", values)) == 20
    for name in ("attn_output", "ffn_down"):
        assert len(layers_with(types, name, DType.Q3_K)) == 20
    assert types["token_embd.weight"] is DType.Q2_K


def test_falcon_has_its_own_rules():
    """Falcon has eight bits in the output and fewer in ffn_down."""
    types = tensor_types(*model(32, family="falcon"), mixture("Q4_K_M"))
    assert types["output.weight"] is Q8_0
    assert layers_with(types, "ffn_down", Q6_K) == [0, 1]
    assert layers_with(types, "ffn_down", Q5_K) == [
        *(2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31)
    ]
    types = tensor_types(*model(32, family="falcon"), mixture("Q4_K_S"))
    assert layers_with(types, "ffn_down", Q5_K) == []
    assert layers_with(types, "attn_qkv", Q5_K) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("family", "sharing", "dtype"),
    [("llama", 8, Q5_K), ("llama", 1, Q4_K), ("qwen2", 1, Q5_K), ("qwen3", 8, Q4_K)],
)
def test_large_models_that_share_values_get_more_bits(family: str, sharing: int, dtype: DType):
    """With 80 layers and many heads to a value, values have at least five bits."""
    metadata, tensors = model(80, family=family, sharing=sharing)
    types = tensor_types(metadata, tensors, mixture("Q4_K_M"))
    assert len(layers_with(types, "attn_v", dtype)) == 40
    assert len(layers_with(types, "attn_v", Q6_K)) == 40


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_q.bias", (4, 256)),
        ("blk.0.attn_q_norm.weight", (4, 256)),
        ("blk.0.ffn_gate_inp.weight", (4, 256)),
        ("blk.0.ssm_conv1d.weight", (4, 256)),
        ("blk.0.time_mix_w1.weight", (4, 256)),
        ("position_embd.weight", (4, 256)),
        ("output_norm.weight", (256,)),
        ("blk.0.attn_q.weight", (1, 256)),
        ("rope_freqs.weight", (32,)),
    ],
)
def test_some_matrices_are_kept(name: str, shape: tuple[int, ...]):
    """Vectors, biases, norms and small matrices of special kinds stay as they are."""
    tensor = TensorInfo(name, DType.BF16, shape, 0, 0)
    assert not is_quantizable(tensor)
    metadata, _ = model(1)
    assert tensor_types(metadata, [tensor], mixture("Q4_K_M"), is_pure=True) == {name: DType.BF16}


def test_the_order_is_by_layer_and_name():
    """Tensors of no layer come first; layers are numbers, not text."""
    metadata, tensors = model(12)
    names = list(tensor_types(metadata, reversed(tensors), mixture("Q8_0")))
    assert names[:3] == ["output.weight", "output_norm.weight", "token_embd.weight"]
    assert [int(name.split(".")[1]) for name in names[3:]] == [
        n for n in range(12) for _ in "8" * 8
    ]


def test_unknown_types_are_refused():
    """The message lists what there is; small letters are as good."""
    assert mixture("q4_k_m") is MIXTURES["Q4_K_M"]
    with pytest.raises(InvalidArgument, match=r"no type 'Q4_K_L'.*Q4_K_M"):
        mixture("Q4_K_L")


def test_contradictions_are_refused():
    """A number of layers that is none is the file's fault."""
    metadata, tensors = model(2)
    with pytest.raises(InvalidModelFile, match="block_count"):
        tensor_types(metadata.replacing("llama.block_count", "two"), tensors, mixture("Q4_K_M"))
