# cmake -DPROGRAM=example_10_scaling -DPAGE=docs/distributed.md -P page_has_output.cmake
# What the program prints stands in the page.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ ${PAGE} page)
string(FIND "${page}" "${printed}" place)
if(printed STREQUAL "" OR place EQUAL -1)
  message(FATAL_ERROR "${PAGE} must have what ${PROGRAM} prints:\n${printed}")
endif()
