# The project's compile options, and the two functions that every folder's CMakeLists.txt uses.

option(BT_SANITIZE_ADDRESS "AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(BT_SANITIZE_THREAD "ThreadSanitizer" OFF)
option(BT_WERROR "A warning is an error, as in .ci/run; a compiler newer than these may have more of them" OFF)
option(BT_FUZZ "Build the libFuzzer targets (needs clang)" OFF)

# A char is signed on aarch64 too, as on x86-64.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${BT_WERROR}>:-Werror> -fsigned-char -ffp-contract=off -fno-math-errno -fvisibility=hidden
                    "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
# Assertions and the log name files as the tree does, so that two builds in different folders are equal.
add_compile_options($<$<COMPILE_LANGUAGE:C>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)
add_compile_definitions(_GNU_SOURCE)
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
if(BT_SANITIZE_ADDRESS OR BT_SANITIZE_THREAD OR BT_FUZZ)
  add_compile_options(-g1 -O1) # line numbers, and few passes: with all of -g and -O2 these builds take twice as long
endif()
if(BT_SANITIZE_ADDRESS)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(BT_SANITIZE_THREAD)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()
if(BT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# Sanitizers and Open MPI: the leak checker's suppressions are the libraries' own leaks; deep stacks tell ours from theirs.  Every test
# runs with these; other runs of programs of a sanitizer build want them too (list of VAR=VALUE).  No test looks at PCI devices, whose names
# (pci.ids, where that is installed) take each rank 1.3 CPU s more to read with such stacks.
set(BT_SANITIZER_ENV)
if(BT_SANITIZE_ADDRESS)
  list(APPEND BT_SANITIZER_ENV "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0"
              "ASAN_OPTIONS=fast_unwind_on_malloc=0" "HWLOC_COMPONENTS=-pci")
endif()
if(BT_SANITIZE_THREAD)
  list(APPEND BT_SANITIZER_ENV "TSAN_OPTIONS=ignore_noninstrumented_modules=1")
endif()

# bt_library(name SOURCE... [LIBS target...]): a static library of one folder.
function(bt_library name)
  cmake_parse_arguments(L "" "" "LIBS" ${ARGN})
  add_library(${name} STATIC ${L_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${L_LIBS} m Threads::Threads)
endfunction()

# bt_reference(name ...): such a library of plain loops, for tests only. One thread runs them, while none of the others do anything.
function(bt_reference name)
  bt_library(${name} ${ARGN})
  if(BT_SANITIZE_THREAD)
    target_compile_options(${name} PRIVATE -fno-sanitize=thread)
  endif()
endfunction()

# All that is installed, without the tests: what `make demo` builds.
add_custom_target(programs)

# bt_program(name SOURCE... [LIBS target...]): an installed program; it knows BT_VERSION.
function(bt_program name)
  cmake_parse_arguments(P "" "" "LIBS" ${ARGN})
  add_executable(${name} ${P_UNPARSED_ARGUMENTS} ${CMAKE_SOURCE_DIR}/core/program.c)
  target_compile_definitions(${name} PRIVATE BT_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${name} PRIVATE ${P_LIBS})
  add_dependencies(programs ${name})
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

if(BUILD_TESTING)
  add_library(bt_one_thread OBJECT ${CMAKE_SOURCE_DIR}/tests/support/one_thread.c)
  target_link_options(bt_one_thread INTERFACE LINKER:--wrap=pthread_create)
endif()

# bt_test(folder.thing SOURCE file [EXE name] [ARGS a...] [NP n] [ONE_THREAD] [LABELS l...] [LIBS ...] [TIMEOUT s] [ENV VAR=VALUE...]):
# exit code 77 = skipped.  With NP the same binary runs as n MPI ranks.  ONE_THREAD: it starts no thread, which is
# held (a thread ends it), so that ThreadSanitizer need not look.  Several tests may share a SOURCE: one that is linked
# otherwise than the others names its EXE.
function(bt_test name)
  cmake_parse_arguments(T "ONE_THREAD" "SOURCE;EXE;NP;TIMEOUT" "ARGS;LABELS;LIBS;ENV" ${ARGN})
  set(exe ${T_EXE})
  if(NOT exe)
    get_filename_component(exe ${T_SOURCE} NAME_WE)
  endif()
  if(NOT TARGET ${exe})
    add_executable(${exe} ${T_SOURCE})
    target_link_libraries(${exe} PRIVATE ${T_LIBS})
    target_compile_definitions(${exe} PRIVATE BT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_compile_options(${exe} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-Og>) # it compiles in a quarter of the time, under sanitizers in three fifths; what it tests is a library
    if(T_ONE_THREAD)
      target_link_libraries(${exe} PRIVATE bt_one_thread)
    endif()
    set_target_properties(${exe} PROPERTIES BT_TEST_SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/${T_SOURCE})
  else()
    get_target_property(of ${exe} BT_TEST_SOURCE)
    if(NOT of STREQUAL "${CMAKE_CURRENT_SOURCE_DIR}/${T_SOURCE}")
      message(FATAL_ERROR "${name}: expected the program ${exe} to be made of ${CMAKE_CURRENT_SOURCE_DIR}/${T_SOURCE}, found ${of}: give it another name (EXE)")
    endif()
  endif()
  if(T_ONE_THREAD)
    list(APPEND T_LABELS one_thread)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300) # for what hangs: a busy machine is given time
  endif()
  if(BT_SANITIZE_ADDRESS OR BT_SANITIZE_THREAD)
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 4")
  endif()
  list(APPEND T_ENV ${BT_SANITIZER_ENV})
  if(T_NP)
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${T_NP} $<TARGET_FILE:${exe}> ${T_ARGS})
    set_tests_properties(${name} PROPERTIES PROCESSORS 4)
    list(APPEND T_ENV ${BT_MPI_TEST_ENV})
    list(APPEND T_LABELS np${T_NP})
  else()
    add_test(NAME ${name} COMMAND ${exe} ${T_ARGS})
    if(NOT "${T_ENV}" MATCHES OMPI_) # no MPI in it: deep stacks cost a lot where there are many small blocks
      list(FILTER T_ENV EXCLUDE REGEX "^ASAN_OPTIONS=")
    endif()
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${T_LABELS}" ENVIRONMENT "${T_ENV}")
endfunction()

# bt_mix_tests(): the last line of a folder. Its tests run among those of other folders, by a hash of their names, so that some
# compute while others wait; what has a COST already keeps it, as the longest do, which come first. And each takes half a core, unless it
# has said otherwise: PROCESSORS counts quarters (scripts/tests).
function(bt_mix_tests)
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(name ${names})
    get_test_property(${name} PROCESSORS quarters)
    if(NOT quarters)
      set_tests_properties(${name} PROPERTIES PROCESSORS 2)
    endif()
    get_test_property(${name} COST cost)
    if(NOT cost)
      string(MD5 hash ${name})
      string(SUBSTRING ${hash} 0 4 hash)
      math(EXPR cost "1 + 0x${hash} % 90")
      set_tests_properties(${name} PROPERTIES COST ${cost})
    endif()
  endforeach()
endfunction()

# Several ranks share a machine's cores in tests: no binding, yield when idle (the second row for Open MPI 4, the third for 5).
set(BT_MPI_TEST_ENV
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_mpi_yield_when_idle=1"
    "OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none"
    "PRTE_MCA_rmaps_default_mapping_policy=slot:OVERSUBSCRIBE;PRTE_MCA_hwloc_default_binding_policy=none")

# Before a test's command: with Open MPI 5, whatever is installed.
set(BT_WITH_OPENMPI5 ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/support/with_openmpi5.py ${CMAKE_BINARY_DIR}/openmpi)

# ENV of a test whose ranks go on when one dies.  Shared memory of the dead stays, so it lies in this folder.
function(bt_mpi_survive env_out folder)
  file(MAKE_DIRECTORY ${folder})
  set(${env_out} OMPI_MCA_orte_enable_recovery=1 PRTE_MCA_state_base_recoverable=1 OMPI_MCA_mpi_ft_enable=1
      OMPI_MCA_btl_vader_backing_directory=${folder} OMPI_MCA_btl_sm_backing_directory=${folder} PARENT_SCOPE)
endfunction()
