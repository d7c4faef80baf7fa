# An overlay port that builds the checkout it lies in: vcpkg install kvcache --overlay-ports=packaging/vcpkg
# For vcpkg's own tree SOURCE_PATH comes from vcpkg_from_github(REPO libkvcache/libkvcache REF v${VERSION} SHA512 ...) instead.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# DLPack's structs as this project declares them; what is installed for users of kvcache.h is the port dlpack.
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DKVCACHE_BUILD_TESTS=OFF
    -DKVCACHE_BUILD_TOOLS=OFF
    -DKVCACHE_BUILD_EXAMPLES=OFF
    -DKVCACHE_ROCKSDB=OFF
    -DKVCACHE_REDIS=OFF
    -DKVCACHE_UCX=OFF
    -DKVCACHE_INSTALL_DLPACK=OFF
    "-DKVCACHE_DLPACK_INCLUDE_DIR=${SOURCE_PATH}/bindings/go/internal/headers"
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME kvcache CONFIG_PATH lib/cmake/kvcache)
vcpkg_fixup_pkgconfig()
vcpkg_copy_pdbs()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share" "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
