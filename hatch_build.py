"""Build hook of the wheel: compiles the modules of [tool.holdfast] with mypyc if possible, and
those in C.

`HOLDFAST_BUILD` decides: `auto` (the default) compiles if it can and makes a pure wheel otherwise,
`compiled` fails if it cannot compile, `pure` never compiles. Must never fall back silently: what
was built and why is written into the wheel as `build.txt` of `broker`, which `broker.build` reads.
pip and `scripts/compile` both use this hook; an editable installation runs the sources and does
not.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "HOLDFAST_BUILD"
PACKAGES: Final = "holdfast_mqtt/packages"  # where a wheel has our packages, as pyproject.toml says
AUTO, COMPILED, PURE = "auto", "compiled", "pure"
# The first word of broker/build.txt if compiling failed and nobody asked for a pure wheel.
FELL_BACK: Final = "fallback"

COMPILE_SECONDS_MAX: Final = 3600  # a small ARM board takes a quarter of an hour
LOG_LINES_SHOWN: Final = 30
# The extension modules are one group, so that calls between them are C calls. One C file per module
# takes 60 % of the time and a quarter of the memory (190 MB) of one file for all, and the code is
# as fast; so is -O2 (measured 2026-11-21).
GROUP: Final = "holdfast"
OPTIMIZATION: Final = "3"
PROBE: Final = "#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n"
HINT: Final = "Debian and Ubuntu: apt-get install gcc libc6-dev python3-dev"


class BuildFailed(Exception):
    """The modules cannot be compiled; the message says why, in one line."""


class CustomBuildHook(BuildHookInterface[Any]):
    """The hook that hatchling calls when it builds the wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling: nothing unless it compiles."""
        wanted = _wanted()
        if wanted == PURE or (wanted == AUTO and _missing_compiler()):
            return []
        return list(_settings(Path(self.root))["compile-with"])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a temporary directory and add its files to the wheel."""
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-build-")
        place = Path(self._directory.name)
        note = place / "build.txt"
        made, why = self._build(place)
        self.app.display_warning(f"holdfast: {'compiled' if made else 'PURE PYTHON'}: {why}")
        if made:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        word = COMPILED if made else (PURE if _wanted() == PURE else FELL_BACK)
        note.write_text(f"{word} {why}\n")
        taken = build_data["force_include"]
        taken[str(note)] = f"{PACKAGES}/broker/build.txt"
        for library in made:
            taken[str(library)] = f"{PACKAGES}/{library.relative_to(place).as_posix()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory."""
        if version != "editable":
            self._directory.cleanup()

    def _build(self, place: Path) -> tuple[list[Path], str]:
        """Return the extension modules built below `place`, if any, and the reason."""
        wanted = _wanted()
        if wanted == PURE:
            return [], f"{VARIABLE}={PURE}"
        try:
            return _compile(Path(self.root), place), f"mypyc {version_of('mypy')}"
        except BuildFailed as failure:
            if wanted == COMPILED:
                said = f"holdfast: {VARIABLE}={COMPILED}, but {failure}\n{HINT}"
                raise SystemExit(said) from None
            return [], str(failure)


def _wanted() -> str:
    wanted = os.environ.get(VARIABLE) or AUTO
    if wanted not in (AUTO, COMPILED, PURE):
        raise SystemExit(f"{VARIABLE}={wanted!r}: expected {AUTO}, {COMPILED} or {PURE}")
    return wanted


def _settings(root: Path) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = tomllib.loads((root / "pyproject.toml").read_text())["tool"][
        "holdfast"
    ]
    return settings


def _missing_compiler() -> str:
    """Return why compiling is impossible here, "" if a test program with Python.h compiles."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        return f"no C compiler was found: {compiler[0]}"
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as directory:
        source = Path(directory, "probe.c")
        source.write_text(PROBE)
        include = f"-I{sysconfig.get_path('include')}"
        command = [*compiler, "-shared", "-fPIC", include, str(source), "-o", f"{source}.so"]
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if ran.returncode == 0:
        return ""
    if "Python.h" in ran.stderr:
        return "the C compiler finds no Python.h"
    said = (ran.stderr.strip().splitlines() or ["no output"])[-1]
    return f"the C compiler does not work: {said}"


def _compile(root: Path, place: Path) -> list[Path]:
    """Return the extension modules of the listed sources, compiled below `place`."""
    missing = _missing_compiler()
    if missing:
        raise BuildFailed(missing)
    settings = _settings(root)
    patterns = settings["compiled"] + (settings["native"] if sys.platform == "linux" else [])
    modules = [
        path.relative_to(root).as_posix()
        for pattern in patterns
        for path in sorted(root.glob(pattern))
    ]
    # All sources, because mypy also needs the types of imported modules.
    for package in {module.split("/")[0] for module in modules}:
        skipped = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(root / package, place / package, ignore=skipped)
    log = place / "compile.log"
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                [sys.executable, __file__, *modules],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=COMPILE_SECONDS_MAX,
            ).returncode
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"compiling took more than {COMPILE_SECONDS_MAX} s") from None
    made = sorted(p for p in place.rglob("*.so") if p.relative_to(place).parts[0] != "build")
    if status or not made:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        sys.stderr.write("\n".join(["holdfast: mypyc or the C compiler failed:", *lines, ""]))
        errors = [line for line in lines if "error" in line.lower()]
        raise BuildFailed(f"compiling failed: {(errors or lines or ['no output'])[-1].strip()}")
    return made


def _run_mypyc(modules: list[str]) -> None:
    """Compile `modules`, in Python or C, beside their sources in the working directory."""
    from concurrent.futures import ThreadPoolExecutor

    from mypyc.build import mypycify
    from setuptools import Extension, setup  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    Path("mypy.ini").write_text(
        # Third-party packages are not installed in a wheel build: use the same types everywhere.
        "[mypy]\nignore_missing_imports = True\nno_site_packages = True\ncache_dir = build/mypy\n"
    )
    extensions = mypycify(
        ["--config-file=mypy.ini", *(module for module in modules if module.endswith(".py"))],
        opt_level=OPTIMIZATION,
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir="build",
    )
    for extension in extensions:
        extension.extra_compile_args.append("-Wno-error")  # newer compilers warn about more
        if sys.platform == "linux":
            extension.extra_link_args.append("-Wl,-s")  # no symbols: half of the size

    extensions += [
        Extension(
            source.removesuffix(".c").replace("/", "."),
            [source],
            extra_compile_args=["-O2", "-Wall"],
            extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],
        )
        for source in modules
        if source.endswith(".c")
    ]

    class BuildInParallel(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            one_after_another = self.compiler.compile

            def compile_all(sources: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda one: one_after_another([one], **options), sources)
                    return [file for files in made for file in files]

            self.compiler.compile = compile_all
            super().build_extensions()

    setup(
        name=GROUP,
        ext_modules=extensions,
        cmdclass={"build_ext": BuildInParallel},
        script_args=["-q", "build_ext", "--inplace", "--build-temp=build", "--build-lib=build"],
    )


if __name__ == "__main__":
    _run_mypyc(sys.argv[1:])
