# SPDX-License-Identifier: Apache-2.0
# nvcc compiles what `flashjit render` prints, of each family.
foreach(kernel "--arch sm_90a --mask causal" "--arch sm_90a --variant hopper-psmem-qs1-split" "--arch sm_80")
  string(REPLACE " " ";" options "${kernel}")
  execute_process(COMMAND ${COMMAND} render ${options} -o ${DIRECTORY}/rendered.cu COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "sm_([0-9]+a?)" target "${kernel}")
  set(number ${CMAKE_MATCH_1})
  execute_process(COMMAND ${NVCC} -std=c++17 -cubin -gencode=arch=compute_${number},code=${target}
                          -o ${DIRECTORY}/rendered.cubin ${DIRECTORY}/rendered.cu RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "nvcc must take the source of: flashjit render ${kernel}")
  endif()
endforeach()
