"""The public surface of the package."""

import pytest

import corral

PUBLIC = [
    "AdapterInfo",
    "ChatReply",
    "CorralError",
    "DeviceReading",
    "FinishReason",
    "Generation",
    "GenerationStatistics",
    "MemoryGrowth",
    "MemoryRow",
    "MemoryStatistics",
    "Model",
    "PlanReport",
    "SamplingParams",
    "Slope",
    "devices",
    "plan",
]


def test_the_public_names_are_these():
    """A public name comes or goes only on purpose."""
    assert sorted(corral.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name):
    """Each name is found in its home, has a docstring, and is listed."""
    value = getattr(corral, name)
    assert value.__doc__
    assert name in dir(corral)


def test_dir_lists_public_names_only():
    """What the package itself imports, or loaded by now, is nobody's business."""
    listed = dir(corral)
    assert [name for name in listed if not name.startswith("__")] == PUBLIC
    assert all(name.endswith("__") for name in listed if name.startswith("_"))
    assert "__version__" in listed


def test_other_names_are_missing_as_usual():
    """A wrong name raises AttributeError and names the package."""
    with pytest.raises(AttributeError, match="module 'corral' has no attribute 'Modell'"):
        _ = corral.Modell
