"""The planning process: what it answers, and what becomes of one that does not."""

import sys

import tiny
from corral.router.entry import Planned, Unusable
from corral.router.footprints import plan_header
from corral.router.plan_job import PlanJob
from corral.router.planner import Planner


def job(path):
    return PlanJob(path=str(path), kinds=("cpu",))


def scripted(code, **options):
    return Planner((sys.executable, "-c", code), **options)


def test_it_answers_as_if_it_were_here(tmp_path):
    """One process for many files, good and bad."""
    good = tiny.write(tmp_path / "good.gguf")
    with Planner() as planner:
        assert planner.plan(job(good)) == plan_header(job(good))
        assert planner.plan(job(tmp_path / "none.gguf")).code == "model_not_found"
        first = planner._process.pid
        assert isinstance(planner.plan(job(good)), Planned)
        assert planner._process.pid == first


def test_it_loads_no_arrays(tmp_path):
    """A router of many models reads their headers without NumPy."""
    path = tiny.write(tmp_path / "m.gguf")
    code = (
        "import io, sys; from corral.router.planner_child import serve\n"
        "from corral.router.plan_job import PlanJob; import json\n"
        "for line in sys.stdin:\n"
        "    out = io.StringIO(); serve([line], out)\n"
        "    heavy = {'numpy', 'llvmlite', 'cuda', 'psutil'} & set(sys.modules)\n"
        "    print(json.dumps({'code': 'loaded', 'message': ' '.join(heavy)}), flush=True)\n"
    )
    with scripted(code) as planner:
        assert planner.plan(job(path)) == Unusable("loaded", "")


def test_one_that_dies_is_replaced(tmp_path):
    """The file it was busy with is unusable, others are not."""
    good = tiny.write(tmp_path / "good.gguf")
    code = (
        "import sys; from corral.router.planner_child import serve\n"
        "for line in sys.stdin:\n"
        "    if 'deadly' in line: sys.exit(1)\n"
        "    serve([line], sys.stdout)\n"
    )
    with scripted(code) as planner:
        found = planner.plan(job("/some/where/deadly.gguf"))
        assert found == Unusable(
            "model", "deadly.gguf: its header was not read: the process that read it died"
        )
        assert isinstance(planner.plan(job(good)), Planned)


def test_one_that_hangs_is_ended():
    """Nobody waits for a file longer than the limit."""
    with scripted("import time; time.sleep(600)", seconds=0.2) as planner:
        assert "longer than 0.2 s" in planner.plan(job("m.gguf")).message
        assert planner._process is None


def test_one_that_talks_nonsense_is_ended():
    """What is no answer is none."""
    code = "import sys\nfor line in sys.stdin: print('{}', flush=True)"
    with scripted(code) as planner:
        assert "its header was not read" in planner.plan(job("m.gguf")).message
        assert planner._process is None


def test_closing_leaves_no_process(tmp_path):
    """It is waited for; a second close is nothing, a later job starts another."""
    path = tiny.write(tmp_path / "m.gguf")
    planner = Planner()
    planner.plan(job(path))
    process = planner._process
    planner.close()
    planner.close()
    assert process.returncode is not None
    assert isinstance(planner.plan(job(path)), Planned)
    planner.close()
