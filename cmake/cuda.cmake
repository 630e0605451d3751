# libbaton_cuda.so: the CUDA kernels for sm_90a, sm_80 and sm_100 in one module, which programs open at start where there is
# one.  Built where nvcc >= 12.8 is found, but not for sanitizers or fuzzing; BT_CUDA=OFF leaves it out.
option(BT_CUDA "Build libbaton_cuda.so where nvcc is found" ON)

set(BT_CUDA_KERNELS device/cuda/checksum.cu device/cuda/rows.cu device/cuda/gemm.cu device/cuda/vocab.cu attention/cuda/decode.cu attention/cuda/chosen.cu attention/cuda/prefill.cu
    attention/cuda/pages.cu moe/cuda/gate.cu moe/cuda/items.cu)
# The back ends around them, in C.
set(BT_CUDA_SOURCES device/cuda/device_cuda.c device/cuda/staging.c device/cuda/sampling.c device/cuda/graph.c device/cuda/products.c
    device/cpu/pool.c device/device.c core/machine.c attention/cuda/attn_cuda.c attention/cuda/forms_cuda.c attention/cuda/chosen_cuda.c moe/cuda/moe_cuda.c
    moe/cuda/routed_cuda.c)
set(BT_CUDA_ARCHS 90a 80 100)

set(BT_CUDA_BUILT FALSE)
find_program(BT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(BT_NVCC)
  execute_process(COMMAND ${BT_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" ignored "${version}")
  set(version "${CMAKE_MATCH_1}")
endif()
if(NOT BT_CUDA OR BT_SANITIZE_ADDRESS OR BT_SANITIZE_THREAD OR BT_FUZZ)
  message(STATUS "CUDA: libbaton_cuda.so is left out of this build")
elseif(NOT BT_NVCC)
  message(STATUS "CUDA: no nvcc, so libbaton_cuda.so is not built; its kernels run on the CPU in tests all the same")
elseif(version VERSION_LESS 12.8)
  message(STATUS "CUDA: nvcc ${version} is older than 12.8, so libbaton_cuda.so is not built; its kernels run on the CPU in tests")
else()
  message(STATUS "CUDA: nvcc ${version} builds libbaton_cuda.so for sm_90a, sm_80 and sm_100")
  set(BT_CUDA_BUILT TRUE)
endif()
if(NOT BT_CUDA_BUILT)
  return()
endif()

get_filename_component(cuda_root ${BT_NVCC} REALPATH)
get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)
set(flags -std=c++17 -O3 -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR} -fmad=false -ftz=true -Xptxas -v -Xcompiler -fPIC)
foreach(arch ${BT_CUDA_ARCHS})
  list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
endforeach()

# One object and one report of ptxas for each file; at low priority, since ptxas takes its time.  Beside them, for tests, the PTX
# of each architecture.
set(objects)
set(BT_CUDA_REPORTS)
foreach(source ${BT_CUDA_KERNELS})
  string(REPLACE "/" "_" name ${source})
  set(out ${CMAKE_BINARY_DIR}/cuda/${name})
  string(REPLACE " " "\\ " target ${out}.o)
  add_custom_command(
    OUTPUT ${out}.o ${out}.ptxas
    COMMAND ${CMAKE_COMMAND} -E make_directory ${out}.keep
    COMMAND sh -c "report=$1; shift; nice -n 19 \"$@\" >\"$report\" 2>&1 || { cat \"$report\"; exit 1; }" sh ${out}.ptxas
            ${BT_NVCC} ${flags} --keep --keep-dir ${out}.keep -MD -MF ${out}.d -MT ${target} -c ${CMAKE_SOURCE_DIR}/${source} -o ${out}.o
    COMMAND find ${out}.keep -type f ! -name "*.ptx" -delete
    DEPENDS ${source} DEPFILE ${out}.d
    COMMENT "nvcc ${source}" VERBATIM)
  list(APPEND objects ${out}.o)
  list(APPEND BT_CUDA_REPORTS ${out}.ptxas)
endforeach()

enable_language(CXX)
find_library(BT_CUDART_STATIC cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/targets/${BT_CUDA_TARGET}/lib
             ${cuda_root}/lib REQUIRED) # the last of PyPI's packages
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
add_library(bt_cuda_kernels STATIC ${objects}) # for tests on a GPU
set_target_properties(bt_cuda_kernels PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(bt_cuda_kernels INTERFACE ${BT_CUDART_STATIC} Threads::Threads ${CMAKE_DL_LIBS} rt)
target_include_directories(bt_cuda_kernels SYSTEM INTERFACE ${cuda_root}/include)
add_library(baton_cuda MODULE ${BT_CUDA_SOURCES} ${objects})
set_target_properties(baton_cuda PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_include_directories(baton_cuda SYSTEM PRIVATE ${cuda_root}/include)
# The log and the memory are the program's: undefined here, found when it opens the module.
target_link_options(baton_cuda PRIVATE -static-libstdc++ -static-libgcc)
target_link_libraries(baton_cuda PRIVATE ${BT_CUDART_STATIC} Threads::Threads ${CMAKE_DL_LIBS} rt)
install(TARGETS baton_cuda LIBRARY DESTINATION lib/baton)
