# One package with everything that `cmake --install` puts down but the modules, and one for each of those: they need RocksDB, hiredis and
# UCX. In the environment (packaging/deb/build): KVCACHE_BINARY_DIR, the build folder, KVCACHE_STAGE, the folder below which the
# files of the package lie, and KVCACHE_MODULE, the name of the module ("tier-rocksdb"), empty for the package with the library.
file(STRINGS "$ENV{KVCACHE_BINARY_DIR}/kvcacheConfigVersion.cmake" version REGEX "set\\(PACKAGE_VERSION \"")
string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" CPACK_PACKAGE_VERSION "${version}")

set(CPACK_GENERATOR DEB)
set(name libkvcache-dev)
if(NOT "$ENV{KVCACHE_MODULE}" STREQUAL "")
  set(name libkvcache-$ENV{KVCACHE_MODULE})
endif()
set(CPACK_PACKAGE_FILE_NAME "${name}-${CPACK_PACKAGE_VERSION}")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{KVCACHE_STAGE};/")
set(CPACK_PACKAGE_NAME ${name})
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
if(name STREQUAL libkvcache-dev)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  # Debian's DLPack header is older than kvcache.h needs; this package brings its own.
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS libdlpack-dev)
  # The first for the archive.
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libssl-dev, libkvcache-tier-rocksdb, libkvcache-tier-redis, libkvcache-transport-ucx")
else()
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV cache of LLM serving as a C library: $ENV{KVCACHE_MODULE}")
  set(CPACK_PACKAGE_DESCRIPTION "The module that kvc_tier_attach or kvc_transport_open loads for it.")
  set(CPACK_DEBIAN_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libkvcache-dev (= ${CPACK_PACKAGE_VERSION})")
endif()
