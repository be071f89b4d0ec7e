"""engine/flight.py: what came of an evaluation, and whose fault it was that it came to nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from corral.engine.adapter_use import AdapterUse
from corral.engine.embedding import embedding
from corral.engine.flight import chosen_token, translated
from corral.errors import InternalError, ModelError, NotFinite

ADAPTERS = (
    AdapterUse(SimpleNamespace(name="style"), 1000.0),
    AdapterUse(SimpleNamespace(name="facts"), -0.5),
)
NAMED = "style (scale 1000), facts (scale -0.5); use smaller scales"
QUANTIZATION = "try another quantization of the model"


@pytest.mark.parametrize(("adapters", "advice"), [((), QUANTIZATION), (ADAPTERS, NAMED)])
def test_numbers_that_are_none_are_blamed_on_adapters_first(adapters, advice):
    """A token that a device could not choose, and a vector without direction, tell what to do."""
    assert chosen_token(3) == 3
    with pytest.raises(NotFinite) as found:
        chosen_token(-1)
    error = translated(found.value, "sampling", adapters)
    assert error is found.value
    assert str(error).startswith("the model computed a logit that is no finite number")
    assert advice in str(error)
    with pytest.raises(NotFinite, match="length nan") as found:
        embedding(np.full(4, np.nan, np.float32), 2, adapters)
    assert advice in str(found.value)
    for told in (str(error), str(found.value)):
        assert (QUANTIZATION in told) is not bool(adapters)


def test_other_errors_say_nothing_of_adapters():
    """Errors of corral's stay as they are; those of others become one of a broken promise."""
    own = ModelError("no token can be chosen")
    assert translated(own, "sampling", ADAPTERS) is own
    assert str(own) == "no token can be chosen"
    other = translated(ZeroDivisionError("oops"), "sampling", ADAPTERS)
    assert isinstance(other, InternalError)
    assert str(other) == "sampling failed: ZeroDivisionError: oops"
