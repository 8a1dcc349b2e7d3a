"""A sample of the cases that `python -m benchmarks.fuzz` throws at the command."""

import json
import pathlib
import shutil
import subprocess
import sys

from benchmarks import fuzz

import cheap

ROOT = pathlib.Path(__file__).parents[1]


def test_fuzzed_commands_files_and_records_end_in_one_sentence(quick_run, tmp_path, monkeypatch):
    shutil.copytree(quick_run("first") / "paths", tmp_path / "finished" / "paths")
    command = [sys.executable, "-m", "benchmarks.fuzz", "--count", "24", "--seed", "26"]
    # a folder of compiled programs would count as a place that a command must not write to
    monkeypatch.delenv(cheap.CACHE, raising=False)
    done = subprocess.run(
        [*command, "--folder", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    results = json.loads(done.stdout[done.stdout.index("{") :])
    assert results["wrong"] == {}, done.stderr
    assert done.returncode == 0
    assert set(results["exit codes"]) <= {"0", "1", "2", "130"}
    assert set(results["kinds"]) == {"file", "line", "problem", "record"}
    cold = fuzz.COLD // 2  # a Python of its own
    assert fuzz.case(26, cold)["cold"]
    kind, code, wrong = fuzz.check(26, cold, tmp_path / "finished")
    assert (kind in results["kinds"], code in fuzz.CODES, wrong) == (True, True, [])


def test_cases_repeat_and_differ():
    assert fuzz.case(0, 3) == fuzz.case(0, 3)
    lines = {json.dumps(fuzz.case(0, k)["arguments"]) for k in range(300)}
    assert len(lines) > 100


def test_the_watcher_sees_what_is_written_elsewhere(tmp_path):
    """A process that writes beside its output folder is caught, one that stays inside is not."""
    out = tmp_path / "out"
    script = (
        "import os, pathlib, sys\n"
        "from benchmarks.fuzz import _watch\n"
        f"out = pathlib.Path({str(out)!r})\n"
        "_watch([out], 1)\n"
        "out.mkdir()\n"
        "(out / 'a').write_text('b')\n"
        "(out / 'a').read_text()\n"
        "(out.parent / 'elsewhere').write_text('b')\n"
        "(out.parent / 'elsewhere').unlink()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    seen = [line.split()[0] for line in done.stdout.splitlines()]
    assert seen == ["open", "os.remove"], done.stderr
