# One package with everything that `cmake --install` puts down. In the environment (packaging/deb/build): KVCACHE_BINARY_DIR,
# the build folder, and KVCACHE_STAGE, the folder below which it was installed.
file(STRINGS "$ENV{KVCACHE_BINARY_DIR}/kvcacheConfigVersion.cmake" version REGEX "set\\(PACKAGE_VERSION \"")
string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" CPACK_PACKAGE_VERSION "${version}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_FILE_NAME "libkvcache-dev-${CPACK_PACKAGE_VERSION}")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{KVCACHE_STAGE};/")
set(CPACK_PACKAGE_NAME libkvcache-dev)
set(CPACK_PACKAGE_VENDOR "libkvcache")
set(CPACK_PACKAGE_CONTACT "libkvcache maintainers <https://github.com/libkvcache/libkvcache>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV cache of LLM serving as a C library")
set(CPACK_PACKAGE_DESCRIPTION
    "Layer specs in, pages planned; tokens in, pages shared; Q, K, V in, attention out.\nLibrary, headers, and the kvcache command.")
set(CPACK_PACKAGING_INSTALL_PREFIX "/")
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "https://github.com/libkvcache/libkvcache")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# Debian's DLPack header is older than kvcache.h needs; this package brings its own.
set(CPACK_DEBIAN_PACKAGE_CONFLICTS libdlpack-dev)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libssl-dev) # for the archive
