"""The command: quick where it can be, one sentence for every error, exit codes as documented."""

import html
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from pdbo.app import cli, folders, inputs
from pdbo.app.errors import InputError

PROBLEM = """
import jax.numpy as jnp
import pdbo

problem = pdbo.problems.get("toy").problem
x0, y0 = 2.0, [0.5, 0.5]  # a list, as in --y0
number = 3
"""


def pdbo(*arguments, **options):
    environment = {k: v for k, v in os.environ.items() if k != "PDBO_DEBUG"}
    return subprocess.run(
        [sys.executable, "-m", "pdbo", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment | options.pop("env", {}),
        timeout=300,
        **options,
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROBLEM)
    return path


LIGHT = [
    (["--help"], 0),
    (["-h"], 0),
    (["--version"], 0),
    (["list"], 0),
    (["reproduce", "--help"], 0),
    (["tyo"], 2),
    (["reproduce", "tyo"], 2),
    (["reproduce", "--seed", "many"], 2),
    (["reproduce", "--out", "/dev/null/x"], 2),
    (["solve", "nowhere.py:problem"], 2),
    (["solve", "examples/toy.py:problme"], 2),
    (["solve", "README.md:problem"], 2),
    (["solve", "examples/toy.py:problem", "--x0", "two"], 2),
    (["solve", "examples/toy.py:problem", "--tol", "inf"], 2),
    (["solve", "examples/toy.py:problem", "--solver", "Newton"], 2),
    (["solve", "examples/toy.py:problem", "--out", "/dev/null"], 2),
    (["report", "nowhere"], 2),
]
ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(("arguments", "code"), LIGHT, ids=lambda v: str(v))
def test_help_list_and_input_errors_import_no_jax(arguments, code):
    script = (
        "import sys\n"
        "from pdbo.app.cli import run\n"
        f"code = run({arguments!r})\n"
        "heavy = {'jax', 'matplotlib', 'sklearn', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["reproduce", "tyo"],
        ["solve", f"{ROOT / 'examples/toy.py'}:problme"],
    ],
    ids=lambda a: a[0],
)
def test_light_commands_import_little(arguments):
    """What the whole command imports, by number and name: that is what an answer waits for."""
    command = [sys.executable, "-X", "importtime", "-m", "pdbo", *arguments]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    names = re.findall(r"^import time: .*\| *([\w.]+)$", said, re.M)
    assert len(names) < 450
    own = [name for name in names if name.partition(".")[0] == "pdbo"]
    assert "pdbo.app.cli" in own and len(own) < 20
    heavy = {"equinox", "jax", "jaxtyping", "matplotlib", "numpy", "pandas", "scipy", "sklearn"}
    assert not heavy & {name.partition(".")[0] for name in names}


def test_exit_codes_are_documented():
    for command in ([], ["reproduce"], ["solve"], ["report"], ["list"]):
        text = " ".join(pdbo(*command, "--help").stdout.split())
        assert "Exit codes: 0 success, 1 a run failed" in text
        assert "130 interrupted" in text
        assert not re.search(r"<\w+|range", text), text  # no types


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pdbo rep", ["report", "reproduce"]),
        ("pdbo reproduce to", ["toy"]),
        ("pdbo solve a.py:b --solver BigS", ["BigSAM"]),
    ],
)
def test_the_shell_completes_commands_experiments_and_solvers(line, found):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    said = pdbo(env=asked | {"_PDBO_COMPLETE": "complete_bash"}).stdout
    assert sorted(said.split()) == found


def test_list_names_everything():
    import pdbo as package
    from pdbo import experiments

    shown = pdbo("list").stdout
    known = [*experiments.EXPERIMENTS, *package.problems.names(), "PDBO", "ITD", "F2SA"]
    assert all(name in shown for name in known)
    assert "Calls" not in shown
    assert experiments.PROBLEMS == list(package.problems.names())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "tyo"], "there is no experiment 'tyo'; did you mean toy?"),
        (["reproduce", "quux"], "there is no experiment 'quux'; there are toy, paths"),
        (["reproduce", "--seed", "-1"], "--seed"),
        (["reproduce", "--seed", "1.5"], "--seed"),
        (["reproduce", "--sed", "1"], "--sed"),
        (["reprodcue"], "reproduce"),
        (["reproduce", "--out", "/dev/null/x"], "/dev/null/x cannot be written to"),
        (["solve", "mine.py"], "FILE.py:NAME"),
        (["solve", "mine.py:problem", "--solver", "PBDO"], "did you mean PDBO?"),
        (["solve", "mine.py:problem", "--x0", "[1,"], "--x0 must be JSON"),
        (["solve", "mine.py:problem", "--steps", "0"], "--steps"),
        (["solve", "mine.py:problem", "--tol", "nan"], "--tol must be a finite number >= 0"),
        (["solve", "mine.py:problem", "--tol", "inf"], "--tol must be a finite number >= 0"),
        (["solve", "mine.py:problem", "--steps", "9" * 30], "--steps"),
        (["solve", "mine.py:problem", "--every", "9" * 5000], "--every"),
        (["solve", "mine.py:problem", "--x0", "[" * 100_000], "--x0 must be JSON"),
        (["solve", "mine.py:problem", "--x0", "[" * 99 + "1" + "]" * 99], "--x0 must be JSON"),
        (["solve", "mine.py:problem", "--x0", "[[1], [2, 3]]"], "--x0 must be JSON"),
        (["solve", "mine.py:problem", "--x0", "NaN"], "--x0 must be JSON"),
        (["solve", "mine.py:problem", "--x0", "1" + "0" * 400], "--x0 must be JSON"),
        (["solve", "a" * 5000 + ".py:problem"], "there is no file aaa"),
        (["solve", "a\nb\x1b[1m.py:problem"], r"there is no file a\nb\x1b[1m.py"),
        (["reproduce", "to\ny"], r"there is no experiment 'to\ny'; did you mean toy?"),
        (["reproduce", "--out", "a" * 5000], "cannot be read: File name too long"),
        (["report", "a" * 5000], "is not a folder"),
        (["solve", "null.py:problem"], "null.py is not Python"),
        (["solve", "bytes.py:problem"], "bytes.py is not Python"),
        (["solve", "leaving.py:problem"], "leaving.py cannot be run: SystemExit: 77"),
        (["solve", "base.py:problem"], "base.py cannot be run: Odd: no exception"),
        (["solve", "exits.py:problem"], "problem in exits.py cannot be solved: SystemExit: 78"),
        (["solve", "mine.py:problem", "--out", "mine.py"], "mine.py is a file, not a folder"),
        (["solve", "mine.py:problme"], "did you mean problem?"),
        (["solve", "mine.py:number"], "number in mine.py must be a pdbo.Problem, got int"),
        (["solve", "broken.py:problem"], "broken.py is not Python: line 1"),
        (["solve", "failing.py:problem"], "failing.py cannot be run: ZeroDivisionError"),
        (["solve", "startless.py:problem"], "a start is needed: give --x0"),
        (["solve", "mine.py:problem", "--y0", "[1, 2, 3, null]"], "--y0"),
        (["report", "."], "holds no records"),
        (["report", "mine.py"], "mine.py is not a folder"),
    ],
    ids=lambda v: ascii(v if isinstance(v, str) else " ".join(v))[1:60],
)
def test_bad_input_is_one_sentence_and_code_2(arguments, sentence, file, monkeypatch, capsys):
    folder = file.parent
    (folder / "broken.py").write_text("problem = (\n")
    (folder / "failing.py").write_text("problem = 1 / 0\n")
    (folder / "startless.py").write_text(PROBLEM.replace("x0, y0 =", "a, b ="))
    (folder / "null.py").write_bytes(b"problem = 1\0\n")
    (folder / "bytes.py").write_bytes(b"problem = '\xff'\n")
    (folder / "leaving.py").write_text("import sys\nproblem = sys.exit(77)\n")
    (folder / "base.py").write_text(
        "class Odd(BaseException): ...\nproblem = 1\nraise Odd('no exception')\n"
    )
    (folder / "exits.py").write_text(
        f"{PROBLEM}\nimport sys\nproblem = pdbo.Problem(lambda x, y: sys.exit(78), problem.g)\n"
    )
    before = sorted(p.name for p in folder.iterdir())
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PDBO_DEBUG", raising=False)
    assert cli.run(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("pdbo: ")
    assert error.count("\n") == 1
    assert len(error) < 400
    assert before == sorted(p.name for p in folder.iterdir() if p.name != "__pycache__")


def test_an_occupied_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    done = pdbo("reproduce", "toy", "--out", tmp_path)
    assert done.returncode == 2
    assert "is not empty: carry on there with --resume" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


# A job that runs the tests in the background ignores the signal. What toy finds is known already.
INTERRUPTED = """
import pathlib, signal, sys
from pdbo.__main__ import main
from pdbo.app import records
from pdbo.experiments import toy
from pdbo.experiments._results import Results
signal.signal(signal.SIGINT, signal.default_int_handler)
known = records.read(pathlib.Path(sys.argv.pop(1)))
toy.run = lambda *_: Results(known.settings, known.arrays, known.calls)
sys.exit(main())
"""


def test_an_interrupted_run_is_resumed(quick_run, tmp_path, capsys):
    out = tmp_path / "results"
    command = [sys.executable, "-c", INTERRUPTED, quick_run("first") / "toy"]
    command += ["reproduce", "toy", "paths", "--quick", "--out", out]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "paths ..." in line:
                time.sleep(0.1)
                running.send_signal(signal.SIGINT)
                break
        rest = running.stderr.read()
    assert running.returncode == 130
    assert "Traceback" not in rest
    assert f"carry on with: pdbo reproduce toy paths --quick --out {out} --resume" in rest
    assert sorted(p.name for p in out.iterdir()) == ["toy"]
    before = (out / "toy" / "times.json").read_bytes()

    there = ["--out", str(out), "--resume"]
    assert cli.run(["reproduce", "toy", "paths", "--seed", "1", "--quick", *there]) == 2
    assert "holds a quick run with seed 0" in capsys.readouterr().err
    for mixed in (["digits", "--quick", "--seed", "1"], ["digits"]):  # toy is there, with seed 0
        assert cli.run(["reproduce", *mixed, *there]) == 2
    assert sorted(p.name for p in out.iterdir()) == ["toy"]

    code = cli.run(["reproduce", "toy", "paths", "--quick", *there])
    error = capsys.readouterr().err
    assert code == 0, error
    assert "toy: already there" in error
    assert (out / "toy" / "times.json").read_bytes() == before
    assert (out / "paths" / "record.json").exists()
    assert (out / "index.html").exists()


def test_solve_prints_the_certificate_and_keeps_record_and_page(file, tmp_path, capsys):
    out = tmp_path / "solution"
    arguments = ["solve", f"{file}:problem", "--solver", "PDBO", "--tol", "1e-3", "--out", str(out)]
    code = cli.run(arguments)
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "eps is" in said.out or "Exact" in said.out
    assert "x = " in said.out and "gradients of g" in said.out
    for name in ("solve/record.json", "solve/arrays.npz", "index.html"):
        assert (out / name).stat().st_size > 0
    page = (out / "index.html").read_text()
    words = html.escape(next(line for line in said.out.splitlines() if line.startswith("y is")))
    assert words in page and "f with y solved again" in page
    assert not (out / "figures").exists()  # the page draws them itself; `pdbo report` writes files
    assert cli.run(arguments) == 2  # occupied
    again = [*arguments, "--force", "--steps", "1"]
    assert cli.run([*again, "--tol", "1e-9", "--x0", "[[", "--y0", "1"]) == 2
    capsys.readouterr()
    assert cli.run([*again, "--x0", "3", "--y0", "[0, 1]"]) == 1
    assert "The step budget was used up" in capsys.readouterr().err


def test_compiled_programs_are_kept_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("PDBO_CACHE", str(tmp_path / "a" / "b"))
    assert folders.programs() == tmp_path / "a" / "b" and (tmp_path / "a" / "b").is_dir()
    monkeypatch.setenv("PDBO_CACHE", "")
    assert folders.programs() is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PDBO_CACHE", str(tmp_path / "file" / "b"))
    assert folders.programs() is None
    monkeypatch.delenv("PDBO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folders.programs() == tmp_path / "pdbo"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert folders.programs() is None


SOLVERS = """
import pdbo
Mine = pdbo.PDBO
tuned = pdbo.PDBO(primal_step=0.05)
Needy = pdbo.solvers.Solver
number = 3
class Pair(pdbo.PDBO):
    def output(self, state):
        return 1.0, 2.0
class Growing(pdbo.PDBO):
    def step(self, problem, state):
        return (super().step(problem, state), 1)
"""


def test_a_solver_of_ones_own_is_a_class_or_an_instance(tmp_path, capsys):
    from pdbo.app.user import load_solver

    path = tmp_path / "mine.py"
    path.write_text(SOLVERS)
    for name in ("Mine", "tuned"):
        found, solver = load_solver(path, name)
        assert found == name and type(solver).__name__ == "PDBO"
    assert float(solver.schedule.primal) == pytest.approx(0.05)
    for name, match in (("number", "must be a pdbo.solvers.Solver, got int"), ("Needy", "Needy"),
                        ("absent", "must be a pdbo.solvers.Solver"),
                        ("Pair", r"Pair.output must return pdbo.solvers.Point\(x, y\), got tuple"),
                        ("Growing", "toy problem with Growing in .* cannot")):  # fmt: skip
        with pytest.raises(InputError, match=match):
            load_solver(path, name)
    there = ["--out", str(tmp_path / "out")]
    for words, match in (
        (["toy", "--solver", f"{path}:Mine"], "--solver is for the scoreboard"),
        (["problems", "--solver", "mine.py"], "the solver is named as FILE.py:NAME"),
    ):
        assert cli.run(["reproduce", *words, *there]) == 2
        assert match in capsys.readouterr().err


def test_unexpected_errors_are_one_sentence_unless_debugging(monkeypatch, capsys, tmp_path):
    def broken(*_):
        raise RuntimeError("the disk\nmelted")

    def full(*_):
        raise OSError(28, "No space left on device", "results/index.html")

    monkeypatch.setattr(cli, "_report", full)
    assert cli.run(["report", str(tmp_path)]) == 1
    expected = "pdbo: results/index.html: No space left on device.\n"
    assert capsys.readouterr().err == expected
    monkeypatch.setattr(cli, "_report", broken)
    monkeypatch.delenv("PDBO_DEBUG", raising=False)
    assert cli.run(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error == "pdbo: RuntimeError: the disk (PDBO_DEBUG=1 shows the traceback).\n"
    monkeypatch.setenv("PDBO_DEBUG", "1")
    with pytest.raises(RuntimeError, match="melted"):
        cli.run(["report", str(tmp_path)])
    assert cli.run(["report", "--bad"]) == 2  # a usage error is one sentence even then


def test_a_failed_experiment_does_not_stop_the_others(monkeypatch, capsys, tmp_path):
    from pdbo.app import runner
    from pdbo.experiments import paths

    def load(name):
        if name == "toy":
            raise ArithmeticError("no luck")
        return paths

    monkeypatch.setattr(runner, "load", load)
    out = tmp_path / "results"
    code = cli.run(["reproduce", "toy", "paths", "--quick", "--out", str(out)])
    error = capsys.readouterr().err
    assert code == 1
    assert "pdbo: toy failed with ArithmeticError: no luck.\n" in error
    assert (out / "paths" / "record.json").exists()
    assert (out / "index.html").exists()


def test_data_is_handed_to_those_who_declare_it_and_downloads_run_by_name_only(
    monkeypatch, capsys, tmp_path
):
    from types import SimpleNamespace

    from pdbo.app import runner
    from pdbo.experiments import EXPERIMENTS, Experiment, Unavailable

    def reads(seed, quick, track, data):
        raise Unavailable(f"there is no corpus in {data.name}; fetch one.")

    entry = Experiment("reads", (1, 1), data="a corpus", download=True)
    monkeypatch.setitem(EXPERIMENTS, "reads", entry)
    monkeypatch.setattr(runner, "load", lambda name: SimpleNamespace(run=reads))
    assert "reads" not in inputs.experiments([])
    corpus = tmp_path / "corpus"
    command = ["reproduce", "reads", "--out", str(tmp_path / "out"), "--data", str(corpus)]
    assert cli.run(command) == 2
    assert "--data must be a folder" in capsys.readouterr().err
    corpus.mkdir()
    assert cli.run(command) == 1
    error = capsys.readouterr().err
    assert "pdbo: reads was not run: there is no corpus in corpus; fetch one.\n" in error
    assert cli.run(["list"]) == 0
    assert "reads (a corpus, downloaded)" in capsys.readouterr().out


def test_the_console_script_is_this_command():
    assert 'pdbo = "pdbo.__main__:main"' in (ROOT / "pyproject.toml").read_text()


def test_files_of_others_are_never_replaced(tmp_path):
    """A folder that merely has an experiment's name is refused, with --resume too."""
    (tmp_path / "toy").mkdir()
    thesis = tmp_path / "toy" / "thesis.tex"
    thesis.write_text("mine")
    done = pdbo("reproduce", "toy", "--quick", "--resume", "--out", str(tmp_path))
    assert done.returncode == 2 and "thesis.tex is not pdbo's" in done.stderr
    assert thesis.read_text() == "mine"


@pytest.mark.parametrize("module", ["typer", "matplotlib"])
def test_a_missing_package_is_one_sentence_and_code_2(module, tmp_path):
    script = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "from pdbo.__main__ import main\n"
        f"sys.argv = ['pdbo', 'report', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    wanted = f"pdbo: {module} must be installed first: pip install 'pdbo[experiments]'.\n"
    assert done.stderr == wanted


@pytest.mark.parametrize(("module", "command"), [("typer", "list"), ("jax", "reproduce")])
def test_an_interrupt_while_importing_is_one_sentence(module, command, tmp_path):
    """The way extension modules see it: the exception, if there were one, is swallowed."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ImportError('swallowed') from None\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = pdbo(
        command, env={"PYTHONPATH": paths}, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "pdbo: interrupted.\n")
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".py"] in ([], ["__pycache__"])


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["reproduce", "tyo"]], ids=" ".join)
def test_a_reader_who_leaves_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pdbo", *arguments],
        stdout=writer, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == (2 if "tyo" in arguments else 0)
    assert ("pdbo: " in done.stderr) == ("tyo" in arguments)
    assert "Broken" not in done.stderr and "Exception" not in done.stderr


def test_an_output_that_cannot_be_written_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pdbo", "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "pdbo: No space left on device.\n")


@pytest.mark.parametrize("colour", [True, False])
def test_colour_is_for_terminals_unless_it_is_not_wanted(colour):
    import pty

    main, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-m", "pdbo", "reproduce", "tyo"], stderr=terminal,
        env=environment | ({} if colour else {"NO_COLOR": "1"}),
    )  # fmt: skip
    assert (b"\x1b[" in os.read(main, 10_000)) == colour
    os.close(main)
    os.close(terminal)


def test_the_list_fits_a_narrow_terminal():
    lines = pdbo("list", env={"COLUMNS": "40"}).stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert any("toy" in line for line in lines)


@pytest.mark.parametrize("name", ["figures", "index.html"])
def test_what_stands_in_the_way_is_named(name, tmp_path, capsys):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "record.json").write_text("{}")
    if name == "figures":
        (tmp_path / name).write_text("mine")
    else:
        (tmp_path / name).mkdir()
    for command in (["report", str(tmp_path)], ["reproduce", "--resume", "--out", str(tmp_path)]):
        assert cli.run(command) == 2
        assert f"{name} is a " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path, capsys):  # pragma: no cover
    tmp_path.chmod(0o500)
    assert cli.run(["reproduce", "toy", "--out", str(tmp_path / "out")]) == 2
    assert "cannot be written to: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import os.path\nfrom json import loads as r\nwith open(p) as f: pass", {"os", "r", "f"}),
        ("class A: pass\ndef b(): pass\nasync_ = lambda q: q", {"A", "b", "async_"}),
        ("match v:\n case [1, *most]: 0\n case {'k': k, **rest}: 0", {"most", "k", "rest"}),
        ("match v:\n case [_, *_]: pass\n case {'k': 1}: pass", {""}),
        ("from json import *", None),
        ("globals()['problem'] = 1", None),
    ],
)  # fmt: skip
def test_the_names_of_a_file_are_read_off_its_text(text, names, tmp_path):
    """None: only a run of the file can tell."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert inputs._bound_names(inputs._parsed(path)) == names
    if names is None:
        assert inputs.target(f"{path}:anything") == (path, "anything")
    else:
        with pytest.raises(InputError, match=r"mine\.py has no 'anything'"):
            inputs.target(f"{path}:anything")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.5", 2.5),
        ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ('{"w": [1, 2], "b": {"c": 0}}', {"w": [1, 2], "b": {"c": 0}}),
        ("{}", None),
        ('{"w": {}}', None),
        ('{"w": [1, [2]]}', None),
        ('{"w": true}', None),
        ("[]", None),
        ('{"w": ' * 40 + "1" + "}" * 40, None),
    ],
)
def test_a_start_is_numbers_lists_or_dicts_of_them(text, value):
    if value is not None:
        assert inputs.start("x0", text) == value
    else:
        with pytest.raises(InputError, match=r"--x0 must be JSON such as"):
            inputs.start("x0", text)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"index.html": "mine"}, "index.html is not pdbo's: choose another folder."),
        ({"figures/own.svg": "mine"}, "figures is not pdbo's: choose another folder."),
        ({"solve": "mine"}, "solve is in the way: choose another folder."),
        ({"solve/notes.txt": "mine"}, "notes.txt is not pdbo's: choose another folder."),
        ({"solve/record.json": "{}", "index.html": "ours"}, ""),
        ({"notes.txt": "mine"}, ""),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, dict) else "",
)
def test_a_folder_to_carry_on_in_holds_nothing_of_others(made, sentence, tmp_path):
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    if sentence:
        with pytest.raises(InputError, match=re.escape(sentence)):
            folders.check_folder(tmp_path, True, "carry on", ["solve"])
    else:
        folders.check_folder(tmp_path, True, "carry on", ["solve"])
    assert all((tmp_path / name).read_text() == text for name, text in made.items())


@pytest.mark.parametrize(
    ("platform", "place"), [("win32", "local/pdbo"), ("darwin", "Library/Caches/pdbo")]
)
def test_programs_are_kept_where_the_system_has_caches(platform, place, tmp_path, monkeypatch):
    for name in ("JAX_COMPILATION_CACHE_DIR", "PDBO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(folders.sys, "platform", platform)
    assert folders.programs() == tmp_path / place and (tmp_path / place).is_dir()


ENTRY = """
import pdbo
toy = pdbo.problems.get("toy")
class Half:
    problem = toy.problem
globals()["problem"] = toy.problem
"""


def test_a_problem_of_a_file_with_its_start(tmp_path):
    from pdbo.app import user

    path = tmp_path / "mine.py"
    path.write_text(ENTRY)
    problem, start = user._problem_and_start(path, "toy", {})
    assert problem.x_set is not None and set(start) == {"x0", "y0"}
    given = {"x0": 3, "y0": {"a": [1, 2], "b": {"c": 0.5}}}
    _, start = user._problem_and_start(path, "toy", given)
    assert float(start["x0"]) == 3 and float(start["y0"]["b"]["c"]) == 0.5
    assert start["y0"]["a"].tolist() == [1, 2]
    for name, sentence in (
        ("problme", "has no 'problme'; did you mean problem?"),
        ("zzz", "has no 'zzz'."),
        ("Half", "Half in .* must be a pdbo.Problem, got the class Half"),
        ("problem", "a start is needed: give --x0"),
    ):
        with pytest.raises(InputError, match=sentence):
            user._problem_and_start(path, name, {})


def test_among_several_processes_an_error_keeps_its_cause():
    from pdbo.app import user

    for alone, seen in ((True, InputError), (False, ZeroDivisionError)):
        with pytest.raises(seen), user._explained("it", alone):
            1 / 0  # noqa: B018


def test_what_json_lacks_is_written_as_what_it_has():
    import numpy as np

    from pdbo.app.records import plain

    held = {"a": np.float64(np.nan), "b": (np.arange(2), np.bool_(True)), "c": -np.inf, "d": None}
    assert plain(held) == {"a": "nan", "b": [[0, 1], True], "c": "-inf", "d": None}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--force", "--resume"], "give only one of them"),
        (["--rank", "0"], "--rank needs --distributed"),
        (["--processes", "2", "--rank", "0"], "needs --distributed"),
    ],
)
def test_options_that_contradict_each_other(options, sentence, file, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.run(["solve", f"{file}:problem", *options, "--out", str(out)]) == 2
    assert sentence in capsys.readouterr().err and not out.exists()


def test_debugging_is_an_option_and_an_interrupt_has_its_code(monkeypatch, capsys):
    monkeypatch.setenv("PDBO_DEBUG", "0")  # put back in the end
    assert cli.run(["--debug", "list"]) == 0 and os.environ["PDBO_DEBUG"] == "1"
    for raised, code, said in (
        (KeyboardInterrupt(), 130, "pdbo: interrupted.\n"),
        (cli.Terminated(), 143, "pdbo: terminated.\n"),
        (cli.RunError("no luck."), 1, "pdbo: no luck.\n"),
    ):

        def stop(*_, raised=raised, **__):
            raise raised

        monkeypatch.setattr(cli, "say", stop)
        capsys.readouterr()
        assert cli.run(["list"]) == code
        assert capsys.readouterr().err == said


def test_the_command_leaves_with_the_code_of_its_run(monkeypatch, capsys):
    left = []
    monkeypatch.setattr(cli.signal, "getsignal", lambda _: print)  # a handler that stays
    monkeypatch.setattr(cli.warnings, "showwarning", None)  # so that it is put back in the end
    monkeypatch.setattr(cli.os, "_exit", left.append)
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["list"])
    assert not left and "toy" in capsys.readouterr().out

    def stop(*_, **__):
        cli.warnings.warn("take care.", stacklevel=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "say", stop)
    with cli.warnings.catch_warnings(), pytest.raises(SystemExit):
        cli.warnings.simplefilter("always")
        cli.main(["list"])
    assert left == [130]  # at once: an interrupted compilation can crash Python's own exit
    assert capsys.readouterr().err == "pdbo: take care.\npdbo: interrupted.\n"


def test_processes_that_cannot_meet_are_told_so(file, tmp_path, capsys):
    out = tmp_path / "out"
    alone = ["--distributed", "--processes", "2", "--rank", "2", "--address", "localhost:1"]
    assert cli.run(["solve", f"{file}:problem", *alone, "--out", str(out)]) == 2
    assert capsys.readouterr().err == "pdbo: rank must be below processes, 2, got 2.\n"
    assert not out.exists()
