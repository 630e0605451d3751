# Run by `cmake --install`: copies the shared libraries of the programs, and Open MPI's launcher with its plugins.
# Variables: BT_BUILD_BIN, BT_MPIEXEC (cmake/package.cmake sets them).
# file(INSTALL) puts DESTDIR before the path, other commands do not.
set(to "${CMAKE_INSTALL_PREFIX}/lib/baton")

# Open MPI: where its plugins and texts lie, below its own prefix.
get_filename_component(mpi_bin "${BT_MPIEXEC}" DIRECTORY)
foreach(what prefix pkglibdir pkgdatadir)
  execute_process(COMMAND ${mpi_bin}/ompi_info --path ${what} --parsable OUTPUT_VARIABLE line
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "path:${what}:([^\n]*)" found "${line}")
  set(mpi_${what} "${CMAKE_MATCH_1}")
  if(NOT IS_DIRECTORY "${mpi_${what}}")
    message(FATAL_ERROR "ompi_info --path ${what} names no directory: ${line}")
  endif()
endforeach()
file(RELATIVE_PATH pkglib "${mpi_prefix}" "${mpi_pkglibdir}")
file(RELATIVE_PATH pkgdata "${mpi_prefix}" "${mpi_pkgdatadir}")

# Plugins for networks that need drivers of their own stay out: a cluster that has them has its own Open MPI.
file(GLOB plugins "${mpi_pkglibdir}/mca_*.so")
list(FILTER plugins EXCLUDE REGEX "_(ucx|ofi|psm|psm2|openib|flux|jsm|monitoring)\\.so$")
# Nor those of OpenSHMEM and of MPI's files, which Baton does not use.
list(FILTER plugins EXCLUDE REGEX "/mca_(atomic|memheap|scoll|spml|sshmem|io|fs|fbtl|fcoll|sharedfp)_")
file(GLOB programs "${BT_BUILD_BIN}/baton" "${BT_BUILD_BIN}/baton-*")
# Open MPI 4 has orted; 5 has PRRTE's prterun, which its mpirun runs, and prted.
set(names "") # in its folder
set(launchers "")
foreach(name mpirun orted prterun prted)
  if(EXISTS "${mpi_bin}/${name}")
    list(APPEND names "${mpi_bin}/${name}")
    get_filename_component(real "${mpi_bin}/${name}" REALPATH)
    list(APPEND launchers "${real}")
  endif()
endforeach()

file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} ${launchers} MODULES ${plugins}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
     DIRECTORIES "${mpi_pkglibdir}/.."
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util|nsl)\\.so")
if(missing)
  message(FATAL_ERROR "libraries that cannot be found: ${missing}")
endif()
# PMIx, which Open MPI uses: its plugins and texts lie beside its library.
set(pmix "")
foreach(library ${libraries})
  if(library MATCHES "/libpmix\\.so")
    get_filename_component(pmix "${library}" REALPATH)
    get_filename_component(pmix "${pmix}/../.." ABSOLUTE)
  endif()
  file(INSTALL "${library}" DESTINATION "${to}" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
  # A RUNPATH of its own would hide the programs' RPATH from it.
  get_filename_component(name "${library}" REALPATH)
  get_filename_component(name "${name}" NAME)
  file(RPATH_REMOVE FILE "$ENV{DESTDIR}${to}/${name}")
endforeach()
if(IS_DIRECTORY "${pmix}/lib/pmix")
  file(INSTALL "${pmix}/lib/pmix" DESTINATION "${to}/pmix/lib" FILES_MATCHING PATTERN "*.so")
  file(INSTALL "${pmix}/share/pmix" DESTINATION "${to}/pmix/share" FILES_MATCHING PATTERN "help-*.txt")
endif()
file(INSTALL ${plugins} DESTINATION "${to}/openmpi/${pkglib}" TYPE MODULE)
file(INSTALL "${mpi_pkgdatadir}/" DESTINATION "${to}/openmpi/${pkgdata}" FILES_MATCHING PATTERN "help-*.txt")
file(INSTALL "${mpi_prefix}/share/prte" DESTINATION "${to}/openmpi/share" OPTIONAL FILES_MATCHING PATTERN "help-*.txt")
file(INSTALL ${names} DESTINATION "${to}/openmpi/bin" TYPE PROGRAM FOLLOW_SYMLINK_CHAIN)
