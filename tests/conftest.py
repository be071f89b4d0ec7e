"""Options of the whole suite."""

import gc

from hypothesis import settings

settings.register_profile("corral", deadline=None)  # how long a case takes is no test's business
settings.load_profile("corral")


def pytest_addoption(parser):
    """Add what lets long tests run at full length."""
    parser.addoption(
        "--soak", action="store_true", help="run the soak tests with the demo model too"
    )
    parser.addoption(
        "--all-architectures",
        action="store_true",
        help="compile every CUDA kernel for every architecture, not for two each",
    )


def pytest_collection_finish():
    """Leave the tests themselves out of every later garbage collection: they are many, and stay."""
    gc.collect()
    gc.freeze()
