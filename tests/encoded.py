"""Values that try the quantizers, and digests of what ggml's reference quantizers make of them."""

import hashlib

import numpy as np

from corral.quant.types import DType

_ROWS, _COLUMNS = 24, 512


def _cases():
    """Return arrays of (rows, columns) by name: the same on every machine, from integers only."""
    state = np.random.RandomState(20)
    sums = state.randint(-(1 << 20), 1 << 20, (12, _ROWS, _COLUMNS)).sum(axis=0)
    normal = (sums * 2.0**-21).astype(np.float32)  # nearly normal, of about one in size
    powers = np.ldexp(np.float32(1), state.randint(-12, 8, normal.shape)).astype(np.float32)
    is_sparse = state.randint(0, 10, normal.shape) < 7
    return {
        "normal": normal,
        "small": normal * np.float32(2.0**-6),
        "heavy tails": normal * powers,
        "sparse": np.where(is_sparse, np.float32(0), normal),
        "positive": np.abs(normal),
        "negative": -np.abs(normal),
        "few levels": np.round(normal * 3),
        "constant rows": np.repeat(normal[:, :1], _COLUMNS, axis=1),
        "far from zero": normal * np.float32(2.0**-20) - np.float32(1),
        "halves": (normal * np.float32(0.02)).astype(np.float16).astype(np.float32),
        "below F16": normal * np.float32(2.0**-30),
        "nearly nothing": normal * np.float32(2.0**-50),
        "subnormal": normal * np.float32(2.0**-127),
        "zeros of both signs": normal * np.float32(0),
    }


CASES = _cases()


def digest(data) -> str:
    """Return a digest of bytes, short enough to be written down."""
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]


ENCODED = {
    DType.F16: {
        "normal": "de452c6616a76193",
        "small": "1d79ec20c0a2d986",
        "heavy tails": "34dad7e0f9803164",
        "sparse": "5260793c35abc2cd",
        "positive": "4de21e2ddecf3323",
        "negative": "359083d6a64f77ba",
        "few levels": "143d27102655f8b9",
        "constant rows": "5e2453726addc5cc",
        "far from zero": "ae21613707ced244",
        "halves": "13b4def702eeaa27",
        "below F16": "ae0ae92f73651936",
        "nearly nothing": "ae0ae92f73651936",
        "subnormal": "ae0ae92f73651936",
        "zeros of both signs": "ae0ae92f73651936",
    },
    DType.BF16: {
        "normal": "cbd803dae496cd09",
        "small": "9e83be76ef3fc3b5",
        "heavy tails": "c0d1299163f4bbcf",
        "sparse": "c5b6f4662b6a06ab",
        "positive": "0629942e4090d616",
        "negative": "7efbbf3f580fdab0",
        "few levels": "65934a95c2b4fe1f",
        "constant rows": "155cedd7b8cebebd",
        "far from zero": "01839b38d3bcea97",
        "halves": "32d9ad355965745a",
        "below F16": "f75ae0f022c34757",
        "nearly nothing": "0b3521faabcce5e2",
        "subnormal": "fefefbdad4947cd0",
        "zeros of both signs": "ae0ae92f73651936",
    },
    DType.Q4_0: {
        "normal": "9cb466232391a96b",
        "small": "be322adf13470ac7",
        "heavy tails": "90946cd6a1fdfbfb",
        "sparse": "5d736816f846aec0",
        "positive": "2d2f379477ad8f41",
        "negative": "eadad3e0d39d2e59",
        "few levels": "acb2a82d5511f564",
        "constant rows": "2e6a9e63d8eb65c3",
        "far from zero": "c4703a4ce074ae6f",
        "halves": "eadbfd86801010e7",
        "below F16": "1e519e482fbc678a",
        "nearly nothing": "1e519e482fbc678a",
        "subnormal": "599224257782a240",
        "zeros of both signs": "4f39359415b3defc",
    },
    DType.Q4_1: {
        "normal": "67d847cfd66796d0",
        "small": "8de69e9b3900ae1d",
        "heavy tails": "638f28fe66ccb626",
        "sparse": "42c8d5ae7cda829b",
        "positive": "59064f3bdfa723cf",
        "negative": "01cc26d76755472c",
        "few levels": "33897c73b53f0065",
        "constant rows": "826a9a467c2bc3f7",
        "far from zero": "8967dad3e096e5d0",
        "halves": "acdc5b3a41ac1a84",
        "below F16": "7e0f93afcabec974",
        "nearly nothing": "7e0f93afcabec974",
        "subnormal": "9b31317c08ed557b",
        "zeros of both signs": "2186efcdb7a09fbc",
    },
    DType.Q5_0: {
        "normal": "58821c255a609b7c",
        "small": "d867cd3bb39c8da3",
        "heavy tails": "5f4f5e0fbd0f8f79",
        "sparse": "1353cb6dd06cd301",
        "positive": "41281d7c65c2ae80",
        "negative": "a998c70d598ce552",
        "few levels": "6678ac03fc125838",
        "constant rows": "fdd9fa3ab3dbaec1",
        "far from zero": "7b6297236347cb19",
        "halves": "7cd42a08ecd6f9dd",
        "below F16": "0d370b9f8bbc3ce6",
        "nearly nothing": "0d370b9f8bbc3ce6",
        "subnormal": "e5ab55845fbdf286",
        "zeros of both signs": "c9a8efa120a34105",
    },
    DType.Q5_1: {
        "normal": "20e59fd5a75190c1",
        "small": "f668d1e734c26d37",
        "heavy tails": "ea953b0ea25d6d6c",
        "sparse": "4bbe95edbfba46c3",
        "positive": "f17b642b91d980e3",
        "negative": "88c992d67651cd42",
        "few levels": "bf79e7dab327d0cc",
        "constant rows": "9fe9ed190f02c32c",
        "far from zero": "e0a7f666515ad5dd",
        "halves": "e6fedc77fa61cd5a",
        "below F16": "11c853e3d797d1a0",
        "nearly nothing": "11c853e3d797d1a0",
        "subnormal": "7ee09b1bf055992d",
        "zeros of both signs": "bcd427eda64cfb22",
    },
    DType.Q8_0: {
        "normal": "e16d125146201aa6",
        "small": "b89686037307ab5e",
        "heavy tails": "cb5e25cc15a5f446",
        "sparse": "e8608a1ce386439b",
        "positive": "58fe19190017c3d9",
        "negative": "80f9d3b3c173534c",
        "few levels": "8d26b77e539b7539",
        "constant rows": "2dcc20c45b9661dc",
        "far from zero": "ed2b861f506d4d24",
        "halves": "554ca65dd8a1e1b3",
        "below F16": "2438ecf35d27d627",
        "nearly nothing": "2438ecf35d27d627",
        "subnormal": "37357e118995039d",
        "zeros of both signs": "37357e118995039d",
    },
    DType.Q4_K: {
        "normal": "c39ddb16da762715",
        "small": "ac5849b6f90525a4",
        "heavy tails": "47d791f92fdf99e0",
        "sparse": "18cf530958476a1a",
        "positive": "24b2e65271d083ae",
        "negative": "6b877eb88b534f6c",
        "few levels": "e77c8bf2add04226",
        "constant rows": "7533020f1bae1191",
        "far from zero": "39eff7a8d889b236",
        "halves": "f1e3e1a450e29c92",
        "below F16": "42463e5aea7a6065",
        "nearly nothing": "08c966b17c6f6d2d",
        "subnormal": "71c642b31e5890a1",
        "zeros of both signs": "71c642b31e5890a1",
    },
    DType.Q5_K: {
        "normal": "5b90b0abb6efe0ad",
        "small": "bf21c76b09c4062b",
        "heavy tails": "d708074b9a1f6f08",
        "sparse": "d41e18afaa536a04",
        "positive": "d4b6c898f2d1f418",
        "negative": "67f76c23deeccb22",
        "few levels": "82e97d95f7a513a9",
        "constant rows": "84e765b522ba5c11",
        "far from zero": "48cb933624cec0af",
        "halves": "29f0c44771c135ac",
        "below F16": "1849da57dacab00f",
        "nearly nothing": "1799efcef57795c7",
        "subnormal": "0f47ecf52af95b17",
        "zeros of both signs": "0f47ecf52af95b17",
    },
    DType.Q6_K: {
        "normal": "ad4ba939c29a2f20",
        "small": "c4ae0fbca748adae",
        "heavy tails": "fcd5fbb657b05e3b",
        "sparse": "9224ca591b0f541e",
        "positive": "7ab1c2e2f702dba2",
        "negative": "89191cf362fde2f8",
        "few levels": "b4fb8b3b78b977ea",
        "constant rows": "2896c6ae6c30bc64",
        "far from zero": "705c1e69147f3e3e",
        "halves": "a2ac8381231718e9",
        "below F16": "bc80d442c863f5e4",
        "nearly nothing": "d23fe01ee6f2c59f",
        "subnormal": "d23fe01ee6f2c59f",
        "zeros of both signs": "d23fe01ee6f2c59f",
    },
}
"""By type and case, of the bytes that llama.cpp's `ggml_quantize_chunk` gives."""
