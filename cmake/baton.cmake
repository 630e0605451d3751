# The project's compile options, and the two functions that every folder's CMakeLists.txt uses.

option(BT_SANITIZE_ADDRESS "AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(BT_SANITIZE_THREAD "ThreadSanitizer" OFF)
option(BT_FUZZ "Build the libFuzzer targets (needs clang)" OFF)

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
                    -ffp-contract=off -fno-math-errno -fvisibility=hidden)
add_compile_definitions(_GNU_SOURCE)
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
if(BT_SANITIZE_ADDRESS)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(BT_SANITIZE_THREAD)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()
if(BT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# bt_library(name SOURCE... [LIBS target...]): a static library of one folder.
function(bt_library name)
  cmake_parse_arguments(L "" "" "LIBS" ${ARGN})
  add_library(${name} STATIC ${L_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${L_LIBS} m Threads::Threads)
endfunction()

# bt_program(name SOURCE... [LIBS target...]): an installed program.
function(bt_program name)
  cmake_parse_arguments(P "" "" "LIBS" ${ARGN})
  add_executable(${name} ${P_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${P_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# bt_test(folder.thing SOURCE file [ARGS a...] [NP n] [LABELS l...] [LIBS ...] [TIMEOUT s]): exit code 77 = skipped.
# With NP the same binary runs as n MPI ranks.  Several tests may share a SOURCE.
function(bt_test name)
  cmake_parse_arguments(T "" "SOURCE;NP;TIMEOUT" "ARGS;LABELS;LIBS" ${ARGN})
  get_filename_component(exe ${T_SOURCE} NAME_WE)
  if(NOT TARGET ${exe})
    add_executable(${exe} ${T_SOURCE})
    target_link_libraries(${exe} PRIVATE ${T_LIBS})
    target_compile_definitions(${exe} PRIVATE BT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  if(T_NP)
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${T_NP} $<TARGET_FILE:${exe}> ${T_ARGS})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${BT_MPI_TEST_ENV}" PROCESSORS 2)
    list(APPEND T_LABELS np${T_NP})
  else()
    add_test(NAME ${name} COMMAND ${exe} ${T_ARGS})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${T_LABELS}")
endfunction()

# Several ranks share a machine's cores in tests: no binding, yield when idle (Open MPI 4).
set(BT_MPI_TEST_ENV
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1"
    "OMPI_MCA_mpi_yield_when_idle=1;OMPI_MCA_hwloc_base_binding_policy=none")
