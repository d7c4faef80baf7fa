"""The README's ten lines, by find_package, against the package."""

import os
import re

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout
from conan.tools.files import load, save


class TenLines(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        readme = load(self, os.path.join(self.recipe_folder, "..", "..", "..", "README.md"))
        program = re.findall(r"^```c\n(.*?)^```", readme, re.S | re.M)[-1]  # the blocks before only show the calls
        save(self, os.path.join(self.build_folder, "ten_lines.c"), program)
        cmake = CMake(self)
        cmake.configure(variables={"TEN_LINES": os.path.join(self.build_folder, "ten_lines.c")})
        cmake.build()

    def test(self):
        if can_run(self):
            self.run(os.path.join(self.cpp.build.bindir, "ten_lines"), env="conanrun")
