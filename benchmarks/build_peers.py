"""Build the HPC checkpoint libraries that benchmarks/nodes.py measures beside deeppart: VELOC, redset and FTI.

    python benchmarks/build_peers.py [--sources FOLDER] [--prefix build/peers]

They are not on PyPI, so they are built from source, at the releases in SOURCES, with the MPI beside this Python and
the optimization that their authors use, for the processor of this machine. `--sources` is a folder with a git clone of
each, plain or bare, named as there; a clone that is not there is fetched from GitHub. Clones are only read. Needed: a C
and a C++ compiler, cmake (without one, `pip install cmake` is done into this environment), zlib and OpenSSL with their
headers (Debian: build-essential zlib1g-dev libssl-dev). At the end the programs of benchmarks/peers_c, which use these
libraries, are in PREFIX/bin. Each step that has been done once is left out the next time; `--again` does all of them.

Nothing else needs these libraries. Exit code: 0 built, 1 a step failed, 2 cannot build here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.launching import ROOT, CannotRunError

PREFIX = ROOT / "build" / "peers"
_PROGRAMS = ROOT / "benchmarks" / "peers_c"
_FLAGS = "-O3 -march=native"
_TIMEOUT_S = 1200.0


@dataclass(frozen=True)
class Source:
    """A library at one of its releases.

    Attributes:
        name: of its clone.
        repository: on GitHub.
        tag, commit: the release; the commit is what counts.
        options: for cmake, beside those for all.
    """

    name: str
    repository: str
    tag: str
    commit: str
    options: tuple[str, ...] = ()


_COMPONENT = ("-DENABLE_TESTS=OFF",)
#: In the order in which they need each other.
SOURCES = (
    Source("KVTree", "ECP-VeloC/KVTree", "v1.5.0", "8a691271aef95ad9092d491233b79a88996abf27", _COMPONENT),
    Source("AXL", "ECP-VeloC/AXL", "v0.9.0", "e256b6d241006eb5822e54f0485e931ff41be84f", _COMPONENT),
    Source("rankstr", "ECP-VeloC/rankstr", "v0.4.0", "9a619f03c22afbc74ec06a2e1274aaba920e7cad", _COMPONENT),
    Source("shuffile", "ECP-VeloC/shuffile", "v0.4.0", "1efbbd3a24f41d5840739ff91eb75818f2bddf06", _COMPONENT),
    Source("redset", "ECP-VeloC/redset", "v0.4.0", "bdf77a1b171e63c1a371f0a79368e80333c9c8c8", _COMPONENT),
    Source("er", "ECP-VeloC/er", "v0.5.0", "b7d3dcaf8b333764fcef1d4ed6ac387553102916", _COMPONENT),
    # socket_queue is what VELOC's own installer takes; the other queue needs Boost
    Source(
        "VELOC",
        "ECP-VeloC/VELOC",
        "veloc-1.8",
        "977eb74caaace915f47893dc18ed7e15d9837b7a",
        ("-DCOMM_QUEUE=socket_queue", "-DPOSIX_IO=direct"),
    ),
    Source(
        "fti",
        "leobago/fti",
        "v1.6",
        "38cf05cf17abc2f0b3230799adff70ec44b75f8a",
        ("-DENABLE_EXAMPLES=OFF", "-DENABLE_TESTS=OFF"),
    ),
)
#: Program -> the libraries it is linked with.
PROGRAMS = {
    "redset_rounds": ("redset", "kvtree", "rankstr"),
    "veloc_rounds": ("veloc-client", "veloc-modules"),
    "fti_rounds": ("fti",),
}


class BuildError(Exception):
    """A step failed; the message says which, and where its output is."""


class Builder:
    """One build.

    Args:
        prefix: where everything goes: ``bin``, ``lib``, ``include``, and ``src`` and ``logs`` of the build.
        sources: a folder with clones, or None.
        again: build also what is there.

    Raises:
        CannotRunError: no compiler, no MPI compiler, or no git.
    """

    def __init__(self, prefix: Path, sources: Path | None, again: bool) -> None:
        self._prefix, self._sources, self._again = prefix.resolve(), sources, again
        self._mpicc, self._mpicxx = _tool("mpicc", "an MPI"), _tool("mpicxx", "an MPI")
        for compiler in ("cc", "c++", "git"):
            _tool(compiler, "build-essential and git")
        self._cmake = ""
        for folder in ("bin", "src", "logs"):
            (self._prefix / folder).mkdir(parents=True, exist_ok=True)

    def library(self, source: Source) -> None:
        """Build and install one library, unless this commit of it is there."""
        mark = self._prefix / "logs" / f"{source.name}.built"
        state = f"{source.commit} {self._mpicc} {' '.join(source.options)} {_FLAGS}"
        if not self._again and mark.exists() and mark.read_text(encoding="utf-8") == state:
            print(f"{source.name} {source.tag}: is there")
            return
        print(f"{source.name} {source.tag}: builds", flush=True)
        mark.unlink(missing_ok=True)
        tree = self._tree(source)
        build = tree.with_name(f"{source.name}-build")
        shutil.rmtree(build, ignore_errors=True)
        options = [
            f"-DCMAKE_INSTALL_PREFIX={self._prefix}",
            f"-DCMAKE_PREFIX_PATH={self._prefix}",
            f"-DCMAKE_INSTALL_RPATH={self._prefix / 'lib'}",
            "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_C_FLAGS_RELEASE={_FLAGS}",
            f"-DCMAKE_CXX_FLAGS_RELEASE={_FLAGS}",
            f"-DMPI_C_COMPILER={self._mpicc}",
            f"-DMPI_CXX_COMPILER={self._mpicxx}",
            "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",  # some ask for less than cmake 4 knows
            *source.options,
        ]
        self._run(source.name, [self._found_cmake(), "-S", str(tree), "-B", str(build), *options])
        self._run(source.name, [self._found_cmake(), "--build", str(build), "--parallel", "2", "--target", "install"])
        mark.write_text(state, encoding="utf-8")

    def program(self, name: str, libraries: tuple[str, ...]) -> None:
        """Build one of our programs; always, they take a second."""
        print(f"{name}: builds", flush=True)
        lib = self._prefix / "lib"
        self._run(
            name,
            [
                self._mpicc,
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror=implicit",
                *_FLAGS.split(),
                f"-I{self._prefix / 'include'}",
            ]
            + [str(_PROGRAMS / f"{name}.c"), str(_PROGRAMS / "rounds.c"), "-o", str(self._prefix / "bin" / name)]
            + [f"-L{lib}", f"-Wl,-rpath,{lib}", *(f"-l{library}" for library in libraries), "-lm"],
        )

    def _tree(self, source: Source) -> Path:
        """The release's files, fresh."""
        tree = self._prefix / "src" / source.name
        clone = self._clone(source)
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = tree.with_suffix(".tar")
        self._run(source.name, ["git", "-C", str(clone), "archive", "-o", str(archive), source.commit])
        shutil.unpack_archive(archive, tree)
        archive.unlink()
        return tree

    def _clone(self, source: Source) -> Path:
        """The user's clone, or one from GitHub."""
        for folder in (
            () if self._sources is None else (self._sources / source.name, self._sources / f"{source.name}.git")
        ):
            if folder.is_dir():
                return folder.resolve()
        clone = self._prefix / "src" / f"{source.name}.git"
        if not clone.is_dir():
            url = f"https://github.com/{source.repository}.git"
            self._run(source.name, ["git", "clone", "--bare", "--branch", source.tag, "--depth", "1", url, str(clone)])
        return clone

    def _found_cmake(self) -> str:
        if not self._cmake:
            beside = Path(sys.prefix) / "bin" / "cmake"
            found = str(beside) if beside.exists() else shutil.which("cmake")
            if found is None:
                self._run("cmake", [sys.executable, "-m", "pip", "install", "--quiet", "cmake"])
                found = str(beside)
            self._cmake = found
        return self._cmake

    def _run(self, what: str, command: list[str]) -> None:
        log = self._prefix / "logs" / f"{what}.log"
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n$ {' '.join(command)}\n")
            output.flush()
            try:
                done = subprocess.run(
                    command, stdout=output, stderr=output, env=environment, timeout=_TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise BuildError(f"{what}: not done within {_TIMEOUT_S:.0f} s; see {log}") from error
        if done.returncode != 0:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise BuildError("\n".join([*last, f"{what}: failed; all of the output is in {log}"]))


def _tool(name: str, of: str) -> str:
    beside = Path(sys.prefix) / "bin" / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise CannotRunError(f"no {name}: install {of}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Build everything that is not there; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="with git clones, named as in SOURCES")
    parser.add_argument("--prefix", type=Path, default=PREFIX, help="where it all goes (default build/peers)")
    parser.add_argument("--again", action="store_true", help="build also what is there")
    options = parser.parse_args(arguments)
    try:
        builder = Builder(options.prefix, options.sources, options.again)
        for source in SOURCES:
            builder.library(source)
        for name, libraries in PROGRAMS.items():
            builder.program(name, libraries)
    except CannotRunError as problem:
        print(f"build_peers: {problem}", file=sys.stderr)
        return 2
    except BuildError as problem:
        print(f"build_peers: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
