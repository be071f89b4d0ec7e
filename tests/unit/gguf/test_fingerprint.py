"""Files of one model have one fingerprint, and nothing else has it."""

import shutil

import pytest

import tiny
from corral.errors import Closed
from corral.gguf import fingerprint, open_model


@pytest.fixture
def path(tmp_path):
    """Return the file of a tiny model."""
    return tiny.write(tmp_path / "tiny.gguf")


def of(path):
    with open_model(path, skip_arrays=True) as file:
        return fingerprint(file)


def test_a_copy_has_the_same(path, tmp_path):
    """Neither place, name nor time counts; nor whether arrays of the header were read."""
    copy = shutil.copyfile(path, tmp_path / "copy.gguf")
    with open_model(path) as file:
        assert fingerprint(file) == of(path) == of(copy)


@pytest.mark.parametrize("where", ["beginning", "middle", "end"])
def test_other_weights_have_another(path, where):
    """A change at the beginning, in the middle or at the end of any tensor is seen."""
    before = of(path)
    with open_model(path) as file:
        places = [(tensor.offset, tensor.size_bytes) for tensor in file.tensors.values()]
    content = bytearray(path.read_bytes())
    for offset, size in places:
        at = offset + {"beginning": 0, "middle": size // 2, "end": size - 1}[where]
        content[at] ^= 1
        path.write_bytes(content)
        assert of(path) != before
        content[at] ^= 1
    path.write_bytes(content)
    assert of(path) == before


def test_another_header_has_another(tmp_path):
    """What metadata say counts: the same weights with another template answer differently."""
    one = tiny.write(tmp_path / "one.gguf")
    other = tiny.write(tmp_path / "other.gguf", "qwen2")
    assert of(one) != of(other)


def test_a_closed_file_has_none(path):
    """The files must be open: those of the same name may be others by now."""
    file = open_model(path)
    file.close()
    with pytest.raises(Closed):
        fingerprint(file)
