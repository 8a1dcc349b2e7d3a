"""pdbo beside its peers: `python -m benchmarks`, or `--quick` for pdbo alone in two minutes.

The first run installs each peer into its own environment under .peers/. Every result is stored
there as soon as it is measured, so an interrupted run continues where it stopped. A result is
measured again if code, settings or versions have changed; `--fresh` measures all of them again.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the judge is not measured

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys
import time
from typing import Any

from . import page, scaling
from .peers import process
from .record import provenance, write
from .settings import ENTRIES, UNTUNED, settings
from .suite import Bench
from .workloads import WORKLOADS, Workload

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
QUICK = ("toy", "toy-500", "counter-1000", "starts", "ridge", "one-penalty")
KEPT = process.FOLDER / "results"


def main(arguments: list[str] | None = None) -> int:
    """Measure what the options select; write the record, the page and its pictures."""
    options = _parse(arguments)
    peers = [] if options.quick else options.peers
    entries = [e for e in ENTRIES if e == "pdbo" or e in peers]
    entries += [] if options.quick else [UNTUNED]
    chosen = [WORKLOADS[name] for name in options.workloads]
    results: dict[str, Any] = {"workloads": {}, "peers": _installed(peers)}
    for workload in chosen:
        results["workloads"][workload.name] = _workload(workload, entries, options)
    results["scaling"] = _scaling(entries, options)
    named = {"threads": options.threads, "quick": options.quick, "seconds of the search":
             {w.name: w.budget for w in chosen}}  # fmt: skip
    if options.quick or options.out:
        out = pathlib.Path(options.out or ROOT / "results" / "benchmarks")
        out.mkdir(parents=True, exist_ok=True)
        record = {"name": "peers", "settings": named, "results": results, **provenance()}
        (out / "peers.json").write_text(json.dumps(record, indent=1) + "\n")
    else:
        out = ROOT / "docs"
        record = json.loads(write("peers", named, results).read_text())
    print("written:", *page.write(record, out), sep="\n  ")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, pdbo alone, installs nothing")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help=", ".join(WORKLOADS))
    others = [e for e in ENTRIES if e not in ("pdbo", UNTUNED)]
    parser.add_argument("--peers", nargs="*", metavar="NAME", default=others,
                        help=", ".join(others))  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="cores each library gets (1)")
    parser.add_argument("--fresh", action="store_true", help="ignore the results of earlier runs")
    parser.add_argument("--out", help="folder for record and page instead of docs")
    options = parser.parse_args(arguments)
    options.workloads = options.workloads or list(QUICK if options.quick else WORKLOADS)
    for name, known in (("workloads", list(WORKLOADS)), ("peers", others)):
        for given in getattr(options, name):
            if given not in known:
                parser.error(f"--{name}: {given!r} is not one of {', '.join(known)}")
    most = len(os.sched_getaffinity(0))
    if not 1 <= options.threads <= most:
        parser.error(f"--threads: must be from 1 to {most}, got {options.threads}")
    return options


def _installed(peers: list[str]) -> dict[str, Any]:
    """The versions in every peer's environment, or the error if it cannot be made."""
    found: dict[str, Any] = {}
    for entry in peers:
        try:
            found[entry] = {"versions": process.versions(ENTRIES[entry])}
        except process.PeerError as error:
            found[entry] = {"error": str(error)}
            print(f"{entry}: {error}", flush=True)
    return found


def _workload(workload: Workload, entries: list[str], options: Any) -> dict[str, Any]:
    """Every entry on a workload; an entry that fails is listed with its error."""
    found: dict[str, Any] = {"title": workload.title, "target": workload.target, "entries": {}}
    todo = {entry: settings(entry, workload.name) for entry in entries}
    bench: Bench | None = None
    try:
        for entry, tried in todo.items():
            if not tried:
                continue
            name = f"{workload.name}.{ENTRIES[entry]}{'' if entry != UNTUNED else '-untuned'}"
            mark = _mark(workload, entry, tried, options.threads)
            result = _kept(name, mark, options)
            if result is None:
                begun = time.perf_counter()
                bench = bench or Bench(workload, options.threads)
                result = _measured(bench, ENTRIES[entry], tried)
                _keep(name, mark, result, options)
                took = time.perf_counter() - begun
                print(f"{workload.name}: {entry}: {_words(result)} ({took:.0f} s)", flush=True)
            found["entries"][entry] = result
    except OSError as error:  # data that cannot be fetched
        found["error"] = f"{type(error).__name__}: {error}"
        print(f"{workload.name}: {found['error']}", flush=True)
    finally:
        if bench:
            bench.folder.cleanup()
    return found


def _measured(bench: Bench, peer: str, tried: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        return bench.measure(peer, bench.best(peer, tried))
    except process.PeerError as error:
        return {"error": str(error)}


def _words(result: dict[str, Any]) -> str:
    if "error" in result:
        return result["error"]
    reached = "reached" if result["reached"] else "not reached"
    return (
        f"{reached} in {result['iterations']} iterations, {result['seconds']:.3g} s, "
        f"{result['microseconds_per_iteration']:.3g} µs each, total {result['total_seconds']:.3g} s"
    )


def _scaling(entries: list[str], options: Any) -> dict[str, Any]:
    quick = options.quick
    parts = {
        "dimension": lambda: scaling.dimension(
            options.threads, scaling.SIZES[:4] if quick else scaling.SIZES
        ),
        "non-zeros": lambda: scaling.non_zeros(
            options.threads, scaling.SIZES[1:4] if quick else scaling.SIZES
        ),
        "memory": lambda: scaling.memory(
            options.threads, entries, counts=scaling.INNER[:3] if quick else scaling.INNER
        ),
    }
    found: dict[str, Any] = {}
    for part, run in parts.items():
        mark = _mark(None, part, [sorted(entries)], options.threads)
        found[part] = _kept(f"scaling.{part}", mark, options)
        if found[part] is None:
            found[part] = run()
            _keep(f"scaling.{part}", mark, found[part], options)
            print(f"{part}: {found[part].get('exponent', found[part].get('bytes'))}", flush=True)
    return found


def _mark(workload: Workload | None, entry: str, tried: list[Any], threads: int) -> str:
    """A digest of all that a stored result depends on: if it changes, measure again."""
    peer = ENTRIES.get(entry, "ours")
    files = [HERE / "workloads.py", HERE / "suite.py", HERE / "scaling.py"]
    files += [HERE / "peers" / f"{name}.py" for name in (peer, "worker", "in_torch", "in_jax")]
    files += [HERE / "peers" / f"{peer}.txt"] if peer != "ours" else []
    files += sorted((ROOT / "src" / "pdbo").rglob("*.py")) if peer == "ours" else []
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    fields = dataclasses.asdict(workload) if workload else {}
    known = {k: v for k, v in fields.items() if isinstance(v, str | int | float)}
    digest.update(json.dumps([known, entry, tried, threads]).encode())
    return digest.hexdigest()


def _kept(name: str, mark: str, options: Any) -> Any:
    path = KEPT / f"{name}.json"
    if options.fresh or options.quick or not path.exists():
        return None
    kept = json.loads(path.read_text())
    return kept["result"] if kept["mark"] == mark else None


def _keep(name: str, mark: str, result: Any, options: Any) -> None:
    if options.quick:
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"mark": mark, "result": result}, indent=1))
    part.replace(path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: results so far are stored, the same command continues from there")
