"""Conan 2 recipe that builds the checkout it lies in: `conan create packaging/conan` from the root of the repository.

For a registry the same recipe gets a source() that fetches a release; nothing else changes.
"""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

REPOSITORY = os.path.join("..", "..")


class Kvcache(ConanFile):
    name = "libkvcache"
    description = "The KV cache of LLM serving as a C library"
    license = "Apache-2.0"
    url = homepage = "https://github.com/libkvcache/libkvcache"
    topics = ("llm", "kv-cache", "attention", "inference")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}
    default_options = {"shared": False}

    def set_version(self):
        project = load(self, os.path.join(self.recipe_folder, REPOSITORY, "CMakeLists.txt"))
        self.version = re.search(r"project\(kvcache VERSION ([0-9.]+)", project).group(1)

    def export_sources(self):
        repository = os.path.join(self.recipe_folder, REPOSITORY)
        for pattern in ("CMakeLists.txt", "LICENSE", "include/*", "kernels/*", "src/*"):
            copy(self, pattern, repository, self.export_sources_folder)
        # DLPack's structs as this project declares them: the package needs no other header than its own two.
        copy(self, "dlpack/dlpack.h", os.path.join(repository, "bindings/go/internal/headers"),
             os.path.join(self.export_sources_folder, "declarations"))

    def requirements(self):
        # Inside the archive's dependents, SHA-256 only; the shared library carries it.
        self.requires("openssl/[>=1.1.1 <4]", visible=not self.options.shared)
        self.requires("nlohmann_json/[>=3.10 <4]", visible=False)
        self.requires("xxhash/[>=0.8 <1]", visible=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "TOOLS", "BENCH", "EXAMPLES"):
            toolchain.cache_variables[f"KVCACHE_BUILD_{part}"] = False
        for module in ("ROCKSDB", "REDIS", "UCX"):  # Modules lie beside a shared library that is installed.
            toolchain.cache_variables[f"KVCACHE_{module}"] = "OFF"
        toolchain.cache_variables["KVCACHE_DLPACK_INCLUDE_DIR"] = os.path.join(self.source_folder, "declarations")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        for folder in ("cmake", "pkgconfig"):
            rmdir(self, os.path.join(self.package_folder, "lib", folder))
        rmdir(self, os.path.join(self.package_folder, "share"))
        unwanted = "libkvcache.a" if self.options.shared else "libkvcache.so"
        for name in os.listdir(os.path.join(self.package_folder, "lib")):
            if name.startswith(unwanted):
                os.remove(os.path.join(self.package_folder, "lib", name))

    def package_info(self):
        self.cpp_info.libs = ["kvcache"]
        self.cpp_info.set_property("cmake_file_name", "kvcache")
        target = "kvcache::kvcache" if self.options.shared else "kvcache::kvcache_static"
        self.cpp_info.set_property("cmake_target_name", target)
        self.cpp_info.set_property("pkg_config_name", "kvcache")
        if not self.options.shared:
            self.cpp_info.defines = ["KVC_STATIC"]
            self.cpp_info.system_libs = ["stdc++", "m", "dl", "pthread"]
            self.cpp_info.requires = ["openssl::crypto"]
