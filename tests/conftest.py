"""Options of the whole suite."""


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
