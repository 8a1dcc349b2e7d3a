"""Checkpoints: a run as one file of plain arrays, verified to the last byte when it is read.

A file is a line `pdbo checkpoint VERSION`, a line with the SHA-256 of all that follows, a line of
JSON, the header, and the arrays as NumPy's npz. No code is named in it and none is run by reading.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import signal
import socket
import time
import warnings
from typing import Any, BinaryIO, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from . import __version__
from . import _trees as trees
from ._batches import reading
from ._certificate import Certificate
from ._checks import kind
from ._errors import RESULTS, CheckpointError, CheckpointWarning, ProblemError
from ._files import replacing
from ._mesh import agree, everywhere, is_leader
from ._precision import has_double, returned, to_float64
from ._problem import Problem, check_problem, values
from ._signals import Signals, leave
from ._solution import Solution, State, launch
from ._solver import Solver
from .sets import Set
from .solvers._streamed import streamed
from .solvers.auto import AutoPDBO

MAGIC, VERSION = "pdbo checkpoint", 1
KEPT = 2  # checkpoints of a folder
LOCK = "lock"
_NAME = re.compile(r"step-(\d{12})\.pdbo")
_BLOCK = 1 << 20
SAME = 1e-3  # of the size of a function: two values of it at one point differ by less
_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def save(path: Any, solution: Solution) -> None:
    """Write a solution, its history and all it takes to carry on to one file.

    The file is there whole or not at all: it is written under another name, flushed and renamed.

    Arguments:
        path: the file.
        solution: what `solve` returned, for one run.
    """
    if not isinstance(solution, Solution):
        raise ProblemError(f"solution must be what solve returned, got {kind(solution)}.")
    if solution.state is None:
        raise CheckpointError("a solution without a state, of a bad problem, cannot be saved.")
    if np.ndim(solution.code) > 0:
        raise CheckpointError("a batch of runs cannot be saved: save the solutions one by one.")
    _write(_path(path), *_pack(solution))


def load(
    path: Any, problem: Problem, solver: Solver | None = None, x0: PyTree = None, y0: PyTree = None
) -> Solution:
    """Read a solution that was saved, to look at or to carry on from with its `state`.

    Whatever differs between the file and what is given here, or between the file and what was
    written, raises a `CheckpointError` with one sentence that says it.

    Arguments:
        path: a file, or a checkpoint folder, of which the last good file is read.
        problem: the problem that was solved: a file holds no functions and no data.
        solver: the solver that was used, `AutoPDBO()` unless named.
        x0, y0: any point of the right structure; needed only where x or y is made of containers
            other than dicts, lists and tuples.
    """
    check_problem(problem)
    solver = AutoPDBO() if solver is None else solver
    if not isinstance(solver, Solver):
        raise ProblemError(f"solver must be a pdbo solver, got {kind(solver)}.")
    solver = streamed(problem, solver)
    path = _path(path)
    if path.is_dir():
        saved, failures = _latest(path)
        if saved is None:
            raise CheckpointError(failures[0] if failures else f"{path} holds no checkpoint.")
        _warn(failures, saved.path)
    else:
        saved = _read(path)
    if not _in_double(saved, solver):
        return _loaded(saved, problem, solver, x0, y0)
    with jax.enable_x64(True):
        x0, y0 = trees.astype((x0, y0), jnp.float64)
        solution = _loaded(saved, to_float64(problem), solver, x0, y0)
    return returned(solution)


def _in_double(saved: "Saved", solver: Solver) -> bool:
    """Whether a run in double precision is read where there is none, as `solve` left it."""
    scale = saved.arrays.get("state.scale")
    double = scale is not None and scale.dtype == "float64"
    return double and solver.prefers_double and not has_double()


def _loaded(saved: "Saved", problem: Problem, solver: Solver, x0: PyTree, y0: PyTree) -> Solution:
    _check_description(saved, problem, solver)
    point = []
    for name, given in (("x", x0), ("y", y0)):
        try:
            structure = _decode(saved.header[name])
        except (KeyError, TypeError, ValueError):
            raise saved.error(f"its {name} cannot be understood") from None
        if structure is None and given is None:
            raise saved.error(f"{name} is made of containers of yours: give {name}0 too")
        point.append(structure if given is None else jax.tree.map(jnp.asarray, given))
    for leaf in jax.tree.leaves(point):
        if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
            raise saved.error(
                f"it is in {leaf.dtype}, which this session lacks: set jax_enable_x64 first"
            )
    with reading(problem):
        template = _template(saved, problem, solver, *point)
        return _unpack(saved, template, problem, solver)


class Folder:
    """The checkpoints of one run, and a lock that another run finds taken.

    The lock is the operating system's, on an open file: it ends with its process, however that
    ends. The last two checkpoints are kept.
    """

    def __init__(self, path: Any, mesh: Any = None):
        self.path, self.mesh = _path(path), mesh
        self.leads = is_leader(mesh)  # one process writes for all
        self.lock: Any = None

    def __enter__(self) -> "Folder":
        if not self.leads:
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = (self.path / LOCK).open("a+")
            if not _locked(self.lock):
                self.lock.seek(0)
                owner = self.lock.read(200).strip() or "another process"
                self.lock.close()
                raise CheckpointError(
                    f"{self.path} is in use by {owner}: two runs cannot share a checkpoint folder."
                )
            self.lock.truncate(0)
            self.lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            self.lock.flush()
            for leftover in self.path.glob(".step-*"):  # of a run killed while it wrote
                leftover.unlink()
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written to: {error.strerror}.") from None
        return self

    def __exit__(self, *_: Any) -> None:
        if self.lock is not None:
            self.lock.close()

    def clear(self) -> None:
        """Remove the checkpoints."""
        for path in _files(self.path):
            path.unlink()

    def resume(
        self, run: State, problem: Problem, start: str | None, columns: set[str]
    ) -> tuple[Solution, dict[str, Any]] | None:
        """The last good checkpoint and the driver's own notes in it; None where there is none.

        `run` is the run at its start, `start` the digest of what it was started with.
        """
        saved = self._latest() if self.leads else None
        (step,) = agree(self.mesh, -1 if saved is None else saved.header["step"])
        if step < 0:
            return None
        saved = _read(self._file(step)) if saved is None else saved
        _check_description(saved, problem, run.solver)
        if None not in (start, saved.header.get("start")) and start != saved.header["start"]:
            raise saved.error("the run in it was started with another x0, y0 or key")
        recorded = {n.removeprefix("history.") for n in saved.arrays if n.startswith("history.")}
        if recorded != columns:
            name = sorted(recorded ^ columns)[0]
            raise saved.error(f"its history {'has' if name in recorded else 'lacks'} {name!r}")
        solution = _unpack(saved, run, problem, run.solver)
        rows = solution.history
        if rows["step"].size and rows["step"][0] == int(run.step):
            began = run.solver.output(run.solver_state)
            _check_values(saved, problem, began, rows["f"][0], rows["g"][0], rows)
        return solution, saved.header.get("notes") or {}

    def _latest(self) -> "Saved | None":
        """The last good checkpoint; those after it are put aside."""
        saved, failures = _latest(self.path)
        if saved is None:
            if failures:
                raise CheckpointError(f"{failures[0]} None can be read: remove them to start anew.")
            return None
        _warn(failures, saved.path)
        for failure in failures:
            failure.path.rename(failure.path.with_suffix(".unreadable"))
        return saved

    def _file(self, step: int) -> pathlib.Path:
        return self.path / f"step-{step:012d}.pdbo"

    def write(
        self, solution: Solution, problem: Problem, start: str | None, notes: dict[str, Any]
    ) -> None:
        """Add a checkpoint and let the oldest go."""
        if not self.leads:
            return
        _write(self._file(int(solution.steps)), *_pack(solution, problem, start, notes))
        for old in _files(self.path)[KEPT:]:
            with contextlib.suppress(OSError):
                old.unlink()


class CheckpointWriter:
    """Keeps the checkpoints of a run that goes on, and ends it when a signal asks for that.

    Arguments:
        path: the folder.
        seconds: between two checkpoints.
        problem, start, columns: what is solved, the digest of what the run was started with, and
            the names of its history.
    """

    def __init__(
        self, path: Any, seconds: float, problem: Problem, start: str | None, columns: set[str]
    ):
        self.folder, self.signals = Folder(path, problem.mesh), Signals()
        self.seconds, self.problem, self.start, self.columns = seconds, problem, start, columns
        self.written = time.monotonic()
        self.number, self.said = 0, ""  # the signal to leave on, and what became of the last save

    def __enter__(self) -> "CheckpointWriter":
        self.folder.__enter__()
        self.signals.__enter__()
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        self.signals.__exit__()
        self.folder.__exit__()
        if self.signals.received and not self.number and error is None:
            signal.raise_signal(self.signals.received)  # it came too late to be answered here

    def resume(self, run: State) -> tuple[Solution, dict[str, Any]] | None:
        """The last good checkpoint of this run and the driver's own notes in it."""
        return self.folder.resume(run, self.problem, self.start, self.columns)

    def due(self) -> bool:
        """Whether it is time for a checkpoint, or to leave with one; alike in all processes."""
        late = self.folder.leads and time.monotonic() - self.written >= self.seconds
        late, self.number = agree(self.problem.mesh, int(late), self.signals.received or 0)
        return bool(late or self.number)

    def save(self, solution: Solution, notes: dict[str, Any]) -> None:
        """Write a checkpoint; a run is not lost because that fails."""
        self.written = time.monotonic()
        try:
            self.folder.write(solution, self.problem, self.start, notes)
            self.said = (
                f"step {solution.steps} is saved in {self.folder.path}: the same call carries on."
            )
        except CheckpointError as error:
            self.said = str(error)
            warnings.warn(f"{error} The run goes on without it.", CheckpointWarning, stacklevel=5)

    def leave(self) -> None:
        """End the run where a signal asked for it."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt(f"interrupted; {self.said}")
        if self.number:
            leave(self.number)


class Failure(str):
    """The sentence about a file that could not be read."""

    path: pathlib.Path


class Saved(NamedTuple):
    """A file read and verified."""

    path: pathlib.Path
    header: dict[str, Any]
    arrays: dict[str, "Stored"]

    def error(self, sentence: str) -> CheckpointError:
        """The error that names the file."""
        return CheckpointError(f"{self.path} does not fit: {sentence}.")


class Stored(NamedTuple):
    """An array as it is kept: keys as integers, dtypes NumPy does not know as bits."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def sha256(self) -> str:
        """The digest of the bytes."""
        return hashlib.sha256(np.ascontiguousarray(self.data).data).hexdigest()


def digest(*trees: PyTree) -> str | None:
    """The SHA-256 of the leaves of trees; None where they are split over processes."""
    try:
        parts = [_store("", leaf).sha256 for leaf in jax.tree.leaves(trees) if _kept(leaf)]
    except CheckpointError:
        return None
    return hashlib.sha256("".join(parts).encode()).hexdigest()


# Solutions to arrays and back


def _pack(
    solution: Solution,
    problem: Problem | None = None,
    start: str | None = None,
    notes: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Stored]]:
    state = solution.state
    assert state is not None
    point = state.solver.output(state.solver_state)
    leaves = {f"state{name}": leaf for name, leaf in _named(state)}
    leaves |= {f"history.{name}": column for name, column in solution.history.items()}
    leaves |= {"f": solution.f, "g": solution.g}
    if solution.certificate is not None:
        leaves |= {f"certificate.{n}": v for n, v in vars(solution.certificate).items()}
    header = {
        "pdbo": __version__,
        "jax": jax.__version__,
        "step": int(solution.steps),
        "result": RESULTS(int(solution.code)).name,
        "note": solution.note,
        "notes": notes,
        "start": start,
        "solver": _describe(state.solver, "solver"),
        "problem": None if problem is None else _structure(problem),
        "x": _encode(point.x),
        "y": _encode(point.y),
    }
    return header, {name: _store(name, leaf) for name, leaf in leaves.items()}


def _unpack(saved: Saved, template: State, problem: Problem, solver: Solver) -> Solution:
    """The solution in a file, for a state shaped like the template."""
    different = _difference(saved, template)
    if different:
        raise saved.error(different)
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    state: State = jax.tree.unflatten(
        structure,
        [
            _restore(saved.arrays[f"state{jax.tree_util.keystr(path)}"], leaf)
            if _kept(leaf)
            else leaf
            for path, leaf in leaves
        ],
    )
    # what is not an array comes from the solver given
    state = eqx.tree_at(lambda s: s.solver, state, eqx.combine(state.solver, solver))
    state = everywhere(problem.mesh, state)
    try:
        kept = {n: _plain(s) for n, s in saved.arrays.items() if not n.startswith("state")}
        cut = {n.partition(".")[::2]: array for n, array in kept.items()}
        history = {name: array for (part, name), array in cut.items() if part == "history"}
        numbers = {n: array[()] for (part, n), array in cut.items() if part == "certificate"}
        certificate = Certificate(**numbers) if numbers else None
        f, g = kept["f"][()], kept["g"][()]
        code = RESULTS[saved.header["result"]]
        note = str(saved.header["note"])
        multiplier = history["multiplier"][-1] if certificate is None else certificate.multiplier
    except (KeyError, IndexError, TypeError):
        raise saved.error("its contents are not those of a solution") from None
    point = state.solver.output(state.solver_state)
    _check_values(saved, problem, point, f, g, history)
    return Solution(
        point.x,
        point.y,
        multiplier if point.multiplier is None else point.multiplier,
        f,
        g,
        certificate,
        np.int32(code),
        history,
        state,
        int(state.step),
        note=note,
    )


def _template(saved: Saved, problem: Problem, solver: Solver, x: PyTree, y: PyTree) -> State:
    """The state of a run that was given a key of the kind the file has, by shapes."""
    tried = []
    for key in _keys(saved):
        tried.append(eqx.filter_eval_shape(launch, problem, x, y, solver, key))
        if not _difference(saved, tried[-1]):
            return tried[-1]
    return tried[0]


def _check_values(
    saved: Saved, problem: Problem, point: Any, f: Any, g: Any, history: dict[str, np.ndarray]
) -> None:
    """Refuse another problem of the same shapes: its f or g at a saved point is another."""
    for name, then, now in zip("fg", (f, g), values(problem, point.x, point.y), strict=True):
        then, now = float(then), float(now)
        size = max(abs(then), float(np.max(np.abs(history[name]), initial=0)))
        if np.isfinite(then) and not abs(now - then) <= SAME * (size + SAME):
            raise saved.error(
                f"{name} is {then:.6g} in it and {now:.6g} here, at the same point: the problem "
                "or its data is another"
            )


def _check_description(saved: Saved, problem: Problem, solver: Solver) -> None:
    """Refuse a solver of another kind or with other numbers, and a problem of other structure."""
    for what, here in (("solver", _describe(solver, "solver")), ("problem", _structure(problem))):
        there = saved.header.get(what)
        if what == "problem" and there is None:  # `save` knows the solution alone
            continue
        if not isinstance(there, dict):
            raise saved.error(f"it does not say which {what} it belongs to")
        for name in [*there, *(n for n in here if n not in there)]:
            a, b = there.get(name, "missing"), here.get(name, "missing")
            if a != b:
                raise saved.error(f"{name} is {a} in it and {b} here")


def _difference(saved: Saved, template: State) -> str:
    """What differs in names, shapes and dtypes between a file and a state, in words."""
    here = {f"state{name}": _kind(leaf) for name, leaf in _named(template)}
    there = {n: (s.dtype, s.shape) for n, s in saved.arrays.items() if n.startswith("state")}
    for name in here:
        if name not in there:
            return f"it has no {name}"
        for what, a, b in zip(("dtype", "shape"), there[name], here[name], strict=True):
            if a != b:
                return f"{name} has {what} {a} in it and {b} here"
    extra = sorted(set(there) - set(here))
    return f"it has {extra[0]}, which is not in the state here" if extra else ""


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _kept(leaf)]


def _kept(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float) or hasattr(leaf, "dtype")


def _kind(leaf: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(leaf, bool | int | float):
        leaf = np.asarray(leaf)
    return str(leaf.dtype), tuple(leaf.shape)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _store(name: str, leaf: Any) -> Stored:
    here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
    if not here:
        raise CheckpointError(f"{name} is split over processes and cannot be saved from one.")
    data = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if data.dtype.hasobject:
        raise CheckpointError(f"{name} is no array of numbers and cannot be saved.")
    if data.dtype.isbuiltin != 1:  # such as bfloat16
        data = data.view(f"u{data.dtype.itemsize}")
    return Stored(*_kind(leaf), data)


def _plain(stored: Stored) -> np.ndarray:
    """An array as NumPy has it, in its own dtype."""
    known = str(stored.data.dtype) == stored.dtype
    return stored.data if known else stored.data.view(jnp.dtype(stored.dtype))


def _restore(stored: Stored, like: Any) -> Any:
    """A stored array as `like` is."""
    if isinstance(like, bool | int | float):
        return type(like)(stored.data.item())
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored.data), impl=_generator(like))
    return jnp.asarray(_plain(stored))


def _generator(like: Any) -> Any:
    if isinstance(like, jax.Array):
        return jax.random.key_impl(like)
    return next(n for n in _GENERATORS if str(_key(n).dtype) == str(like.dtype))


def _key(generator: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=generator))


def _keys(saved: Saved) -> list[Any]:
    """The kinds of key a run may have been given, those seen in the file first."""
    raw = [jax.ShapeDtypeStruct((n,), jnp.uint32) for n in (2, 4)]
    seen = {stored.dtype for stored in saved.arrays.values()}
    return sorted([_key(n) for n in _GENERATORS] + raw, key=lambda k: str(k.dtype) not in seen)


# Solvers and points in words


def _structure(problem: Problem) -> dict[str, str]:
    """A problem without its functions: the sets with their numbers, the data by its shapes."""
    found = {}
    for field in dataclasses.fields(problem):
        if field.name not in ("f", "g", "mesh"):
            value = getattr(problem, field.name)
            found |= _describe(value, field.name, numbers=isinstance(value, Set))
    return found


def _describe(value: Any, name: str, numbers: bool = True) -> dict[str, str]:
    """What a value is made of: classes, settings and arrays, with their numbers if wanted."""
    if isinstance(value, eqx.Module) and hasattr(value, "dtype"):
        # a matrix of `pdbo.linear`, the same on any number of devices
        return {name: f"a matrix of {value.dtype}{list(value.shape)}"}  # type: ignore
    if isinstance(value, eqx.Module):
        parts = {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, dict):
        parts = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{index}]": part for index, part in enumerate(value)}
    elif hasattr(value, "dtype"):
        return {name: _array_text(value, numbers)}
    else:
        simple = value is None or isinstance(value, bool | int | float | str)
        return {name: repr(value) if simple else f"a {type(value).__name__}"}
    found = {name: type(value).__name__}
    for key, part in parts.items():
        found |= _describe(part, name + key, numbers)
    return found


def _array_text(value: Any, numbers: bool) -> str:
    text = f"{value.dtype}{list(value.shape) or ''}"
    if not numbers:
        return text
    if np.size(value) > 8:
        return f"{text} of SHA-256 {digest(value)}"
    numbers_ = ", ".join(map(str, np.asarray(value).ravel()))  # as short as is exact
    return f"{numbers_} ({text})"


def _encode(tree: Any) -> Any:
    """The structure of a point as JSON; a container that JSON has no word for is a string."""
    if tree is None:
        return None
    if hasattr(tree, "dtype"):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype)}
    if type(tree) is dict and all(type(k) is str for k in tree):
        return {"dict": {k: _encode(v) for k, v in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_encode(v) for v in tree]}
    return type(tree).__name__


def _decode(tree: Any) -> PyTree:
    """The structure again, of shapes and dtypes; None where a container is not known."""
    try:
        return _build(tree)
    except _UnknownContainer:
        return None


class _UnknownContainer(Exception):
    pass


def _build(tree: Any) -> PyTree:
    if tree is None:
        return None
    if isinstance(tree, str):
        raise _UnknownContainer
    if "shape" in tree:
        return jax.ShapeDtypeStruct(tuple(map(int, tree["shape"])), jnp.dtype(str(tree["dtype"])))
    ((name, parts),) = tree.items()
    if name == "dict":
        return {k: _build(v) for k, v in parts.items()}
    return {"list": list, "tuple": tuple}[name](_build(v) for v in parts)


# Files


def _path(path: Any) -> pathlib.Path:
    if not isinstance(path, str | os.PathLike):
        raise ProblemError(f"a path must be a string or a pathlib.Path, got {kind(path)}.")
    return pathlib.Path(path)


class _Hashed(io.RawIOBase):
    """What is written to it goes to a file and into a digest; it cannot be rewound."""

    def __init__(self, file: BinaryIO):
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        return self.file.write(content)

    def writable(self) -> bool:
        return True


def _write(path: pathlib.Path, header: dict[str, Any], arrays: dict[str, Stored]) -> None:
    listed = [
        {"name": n, "dtype": s.dtype, "shape": s.shape, "sha256": s.sha256}
        for n, s in arrays.items()
    ]
    try:
        with replacing(path) as file:
            file.write(f"{MAGIC} {VERSION}\n".encode())
            place = file.tell()
            file.write(b"0" * 64 + b"\n")
            rest: Any = _Hashed(file)
            rest.write((json.dumps(header | {"arrays": listed}) + "\n").encode())
            members: dict[str, Any] = {str(i): s.data for i, s in enumerate(arrays.values())}
            np.savez(rest, **members)
            file.seek(place)
            file.write(rest.sha256.hexdigest().encode())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from error


def _read(path: pathlib.Path) -> Saved:
    """A file, every byte of it verified; a CheckpointError names it and says what is wrong."""
    try:
        with path.open("rb") as file:
            return Saved(path, *_parse(file))
    except _Damaged as error:
        raise CheckpointError(f"{path} {error}.") from None
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None


class _Damaged(Exception):
    """What is wrong with a file."""


def _parse(file: BinaryIO) -> tuple[dict[str, Any], dict[str, Stored]]:
    first = file.readline(64)
    if not first:
        raise _Damaged("is empty")
    found = re.fullmatch(re.escape(MAGIC.encode()) + rb" (\d{1,9})\n", first)
    if not found:
        raise _Damaged("is not a checkpoint, or its first line is damaged")
    if int(found[1]) != VERSION:
        raise _Damaged(f"has format {int(found[1])}, and this pdbo reads format {VERSION}")
    expected, sha256 = file.read(65), hashlib.sha256()
    place = file.tell()
    while block := file.read(_BLOCK):
        sha256.update(block)
    if expected != sha256.hexdigest().encode() + b"\n":
        raise _Damaged("is damaged: it is not what was written")
    file.seek(place)
    try:
        header = json.loads(file.readline())
        with np.load(file, allow_pickle=False) as contents:
            arrays = {}
            for index, entry in enumerate(header["arrays"]):
                stored = Stored(entry["dtype"], tuple(entry["shape"]), contents[str(index)])
                if stored.sha256 != entry["sha256"]:
                    raise _Damaged(f"is damaged: {entry['name']} is not what was written")
                arrays[entry["name"]] = stored
    except (_Damaged, OSError):
        raise
    except Exception:  # written by nobody's pdbo
        raise _Damaged("is damaged: its contents are not those of a checkpoint") from None
    return header, arrays


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints of a folder by name, the last one first."""
    try:
        return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}.") from None


def _latest(folder: pathlib.Path) -> tuple[Saved | None, list[Failure]]:
    """The last good checkpoint of a folder, and the sentences about later ones that are not."""
    failures = []
    for path in _files(folder):
        try:
            saved = _read(path)
            if path.name != f"step-{saved.header.get('step', -1):012d}.pdbo":
                raise CheckpointError(f"{path} holds step {saved.header.get('step')}, not its own.")
            return saved, failures
        except CheckpointError as error:
            failure = Failure(error)
            failure.path = path
            failures.append(failure)
    return None, failures


def _warn(failures: list[Failure], used: pathlib.Path) -> None:
    for failure in failures:
        warnings.warn(f"{failure} {used.name} is used instead.", CheckpointWarning, stacklevel=4)


def _locked(file: Any) -> bool:
    """Take the lock of an open file; False where another holds it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:
        if os.name == "nt":
            return False
        raise
    return True
