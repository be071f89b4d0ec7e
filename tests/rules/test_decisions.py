"""Decision records are numbered one by one, and each says its number."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"


def test_each_decision_has_a_number_of_its_own():
    """In the name of its file and in its title, without gaps."""
    names = sorted(path.name for path in FOLDER.glob("*.md"))
    assert [name[:5] for name in names] == [f"{n:04}-" for n in range(1, len(names) + 1)]
    for number, name in enumerate(names, 1):
        assert (FOLDER / name).read_text().startswith(f"# {number}. ")
