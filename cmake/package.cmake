# What `cmake --install` makes, and CPack's tarball of it: a tree that may be moved, and that brings what a
# machine without package registries lacks. Include it before the folders: it sets their RPATH.
#
#     bin/baton, bin/baton-*         find each other in their own directory
#     lib/baton/*.so                 shared libraries other than glibc's, found by RPATH from ../bin
#     lib/baton/openmpi/             mpirun, its plugins and texts; baton-launch looks there first
#     share/baton/models/demo        the demo model
option(BT_BUNDLE "Install the shared libraries and Open MPI's run time as well" ON)

if(BT_BUNDLE)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib/baton")
  # DT_RPATH, not DT_RUNPATH: it holds for the libraries' own libraries too.
  add_link_options(-Wl,--disable-new-dtags)
  install(CODE "set(BT_BUILD_BIN \"${CMAKE_BINARY_DIR}/bin\")
                set(BT_MPIEXEC \"${MPIEXEC_EXECUTABLE}\")")
  install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/bundle.cmake)
endif()
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/baton/models)
install(FILES proto/vllm_engine.proto proto/sglang_scheduler.proto DESTINATION ${CMAKE_INSTALL_DATADIR}/baton/proto)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "The Baton authors")
set(CPACK_PACKAGE_FILE_NAME "baton-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
include(CPack)
